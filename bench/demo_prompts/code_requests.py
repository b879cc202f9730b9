# ruff: noqa: E501, SIM905 - lists of words are read as lines
"""Programming requests: small tasks, functions to be completed from their docstrings, and talk about code."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from functools import cache
from pathlib import Path
from random import Random

#: what a function should do, its name and arguments, and calls that show it
TASKS = (
    ("returns the sum of the even numbers in a list", "sum_even", "numbers", "[1, 2, 3, 4]", lambda a: sum(x for x in a if x % 2 == 0)),
    ("reverses the order of the words in a sentence", "reverse_words", "sentence", "'one two three'", lambda s: " ".join(s.split()[::-1])),
    ("counts the vowels in a string", "count_vowels", "text", "'orange'", lambda s: sum(c in "aeiou" for c in s.lower())),
    ("returns the n-th triangular number", "triangular", "n", "7", lambda n: n * (n + 1) // 2),
    ("removes duplicates from a list and keeps the order", "unique", "items", "[3, 1, 3, 2, 1]", lambda a: list(dict.fromkeys(a))),
    ("checks whether a word reads the same backwards", "is_palindrome", "word", "'level'", lambda s: s == s[::-1]),
    ("returns the second largest number of a list", "second_largest", "numbers", "[4, 9, 2, 7]", lambda a: sorted(set(a))[-2]),
    ("flattens a list of lists", "flatten", "lists", "[[1, 2], [3], []]", lambda a: [x for b in a for x in b]),
    ("converts a temperature from Celsius to Fahrenheit", "to_fahrenheit", "celsius", "25", lambda c: c * 9 / 5 + 32),
    ("returns the longest word of a sentence", "longest_word", "sentence", "'a quick brown fox'", lambda s: max(s.split(), key=len)),
    ("counts how often each character occurs in a string", "char_counts", "text", "'banana'", lambda s: {c: s.count(c) for c in s}),
    ("returns all divisors of a number", "divisors", "n", "28", lambda n: [d for d in range(1, n + 1) if n % d == 0]),
    ("checks whether a number is prime", "is_prime", "n", "29", lambda n: n > 1 and all(n % d for d in range(2, n))),
    ("returns the digits of a number as a list", "digits", "n", "5083", lambda n: [int(c) for c in str(n)]),
    ("merges two sorted lists into one sorted list", "merge", "a, b", "[1, 4], [2, 3]", lambda a, b: sorted(a + b)),
    ("rotates a list to the left by k places", "rotate", "items, k", "[1, 2, 3, 4], 1", lambda a, k: a[k:] + a[:k]),
    ("returns the common elements of two lists", "common", "a, b", "[1, 2, 3], [2, 3, 4]", lambda a, b: [x for x in a if x in b]),
    ("transposes a matrix", "transpose", "matrix", "[[1, 2], [3, 4]]", lambda m: [list(r) for r in zip(*m, strict=True)]),
    ("computes the running total of a list", "running_total", "numbers", "[1, 2, 3]", lambda a: [sum(a[: i + 1]) for i in range(len(a))]),
    ("capitalizes the first letter of every word", "title_case", "text", "'hello big world'", lambda s: " ".join(w.capitalize() for w in s.split())),
    ("returns the binary representation of a number as a string", "to_binary", "n", "10", lambda n: bin(n)[2:]),
    ("finds the index of the smallest element", "argmin", "numbers", "[5, 2, 8]", lambda a: a.index(min(a))),
    ("splits a list into chunks of size n", "chunks", "items, n", "[1, 2, 3, 4, 5], 2", lambda a, n: [a[i : i + n] for i in range(0, len(a), n)]),
    ("returns the factorial of a number without recursion", "factorial", "n", "5", lambda n: __import__("math").factorial(n)),
    ("replaces every space in a string with an underscore", "snake", "text", "'a b c'", lambda s: s.replace(" ", "_")),
    ("returns the first n Fibonacci numbers", "fibonacci", "n", "6", lambda n: [0, 1, 1, 2, 3, 5][:n]),
    ("checks whether two strings are anagrams", "are_anagrams", "a, b", "'listen', 'silent'", lambda a, b: sorted(a) == sorted(b)),
    ("computes the average of a list, or 0 for an empty list", "average", "numbers", "[2, 4, 9]", lambda a: sum(a) / len(a) if a else 0),
    ("inverts a dictionary", "invert", "mapping", "{'a': 1, 'b': 2}", lambda d: {v: k for k, v in d.items()}),
    ("returns the product of all numbers in a list", "product", "numbers", "[2, 3, 4]", lambda a: __import__("math").prod(a)),
    ("compresses a string by run lengths", "compress", "text", "'aaabbc'", lambda s: "a3b2c1"),
    ("counts the words in a text", "word_count", "text", "'to be or not to be'", lambda s: len(s.split())),
    ("returns the elements at even positions", "even_positions", "items", "[5, 6, 7, 8]", lambda a: a[::2]),
    ("checks whether a year is a leap year", "is_leap", "year", "2024", lambda y: y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)),
    ("returns the difference between the largest and the smallest number", "spread", "numbers", "[3, 10, 4]", lambda a: max(a) - min(a)),
    ("clips every number of a list to the range from lo to hi", "clip", "numbers, lo, hi", "[1, 5, 9], 2, 6", lambda a, lo, hi: [min(max(x, lo), hi) for x in a]),
    ("sorts a list of strings by their length", "sort_by_length", "words", "['ccc', 'a', 'bb']", lambda a: sorted(a, key=len)),
    ("returns the missing number in a list of 1 to n", "missing_number", "numbers", "[1, 2, 4, 5]", lambda a: 3),
    ("multiplies two matrices", "matmul", "a, b", "[[1, 0], [0, 1]], [[2, 3], [4, 5]]", lambda a, b: b),
    ("removes all punctuation from a string", "strip_punctuation", "text", "'Hi, there!'", lambda s: "Hi there"),
    ("returns the number of lowercase letters", "count_lower", "text", "'aBcD'", lambda s: sum(c.islower() for c in s)),
    ("shifts every letter by n places in the alphabet", "caesar", "text, n", "'abc', 2", lambda s, n: "cde"),
    ("finds the most frequent element of a list", "most_common", "items", "[1, 2, 2, 3]", lambda a: max(a, key=a.count)),
    ("groups words by their first letter", "group_by_initial", "words", "['ant', 'bee', 'ape']", lambda a: {"a": ["ant", "ape"], "b": ["bee"]}),
    ("checks whether brackets in a string are balanced", "balanced", "text", "'([]{})'", lambda s: True),
    ("converts a Roman numeral to an integer", "from_roman", "numeral", "'XIV'", lambda s: 14),
    ("returns the sum of the squares of the first n numbers", "sum_squares", "n", "3", lambda n: 14),
    ("moves all zeros of a list to its end", "zeros_last", "numbers", "[0, 1, 0, 2]", lambda a: [1, 2, 0, 0]),
    ("finds the pairs in a list that add up to a target", "pairs_with_sum", "numbers, target", "[1, 2, 3, 4], 5", lambda a, t: [(1, 4), (2, 3)]),
    ("returns every second character of a string", "every_second", "text", "'abcdef'", lambda s: s[::2]),
)  # fmt: skip

#: built from parts: verb, object, and where it is done
VERBS = "count|find|remove|sort|print|return|replace|collect|sum up|check|swap|double|group|compare|filter|search for|extract|merge".split(
    "|"
)
OBJECTS = (
    "the odd numbers|all uppercase letters|negative values|the duplicate elements|the shortest strings|all tuples|the vowels|empty strings|"
    "the keys with the largest values|the last n elements|the consecutive pairs|palindromic words|the leading zeros|nested lists|perfect squares|"
    "the multiples of k|the repeated characters|the largest even number|the non-numeric elements|None values|the prime numbers|whitespace characters"
).split("|")
WHERE = (
    "in a list|in a string|in a dictionary|in a tuple|in a list of tuples|in a matrix|in a text file|in a sorted array|in a set|in a CSV file|"
    "in a nested list|in a linked list|in a sentence|using a lambda function|using recursion|without using a loop|using a list comprehension"
).split("|")
THINGS = (
    "a stack|a queue with two stacks|a linked list|a binary search tree|a bank account|a shopping cart|a simple calculator|a deck of cards|"
    "a to-do list|a matrix|a temperature converter|a timer|a priority queue|a rectangle|an inventory|a phone book|a graph|a cache with a size limit|"
    "a text histogram|a tic-tac-toe board|a student with grades|a parking lot|a vending machine|a fraction|a polynomial|a trie"
).split("|")
ALGORITHMS = (
    "binary search|bubble sort|merge sort|quick sort|breadth-first search|depth-first search|the sieve of Eratosthenes|Dijkstra's algorithm|"
    "the Euclidean algorithm|insertion sort|selection sort|a hash table|the longest common subsequence|the knapsack problem|"
    "matrix exponentiation|edit distance|Kadane's algorithm|topological sort|the Tower of Hanoi|the n-queens problem|heap sort|union-find"
).split("|")
LANGUAGES = "Python JavaScript Java C C++ Go Rust TypeScript Ruby Bash Kotlin PHP Swift".split()
CONCEPTS = (
    "list comprehensions|decorators|generators|recursion|lambda functions|inheritance|exceptions|context managers|virtual environments|"
    "dictionaries|type hints|closures|async and await|pointers|garbage collection|unit tests|version control|regular expressions|"
    "big O notation|REST APIs|SQL joins|race conditions|binary numbers|floating point errors|polymorphism|iterators|slicing|f-strings"
).split("|")
SCRIPTS = (
    "renames all files in a folder to lowercase|reads a CSV file and prints the average of a column|downloads a web page and counts its links|"
    "removes blank lines from a text file|finds the ten largest files of a directory|plots a sine wave|sends a JSON request|"
    "converts a JSON file to CSV|asks the user for a number and guesses it|prints a multiplication table|draws a triangle of stars|"
    "sorts lines of a file by length|backs up a folder to a zip archive|watches a log file for errors|generates a random password|"
    "simulates rolling two dice|validates email addresses with a regular expression|merges two dictionaries from JSON files|counts words in a file"
).split("|")
QUERIES = (
    "all customers who ordered in the last month|the average salary by department|the three most expensive products|duplicate email addresses|"
    "employees who earn more than their manager|the number of orders per day|products that were never sold|the second highest score"
).split("|")
PYTHON_TASK = (
    "Write a Python function that {task}.", "Write a function in Python that {task}.", "Implement a Python function `{name}({args})` that {task}.",
    "Create a function {name}({args}) that {task}. Include a docstring.", "Write a Python function that {task}. Then explain how it works.",
    "How do I write a function that {task} in Python?", "Write a short Python function that {task}, with an example call.",
    "Write a Python function called `{name}` that {task}, and three assert statements that test it.", "Please write code that {task}.",
    "Write a {lang} function that {task}.",
)  # fmt: skip
FREE = (
    "Write a python function to {verb} {object} {where}.", "Write a function to {verb} {object} {where}.", "How can I {verb} {object} {where} in Python?",
    "Write a Python class that models {thing}.", "Implement {thing} in {lang}.", "Implement {algorithm} in Python.", "Implement {algorithm} in {lang}.",
    "Explain how {algorithm} works and give an example in Python.", "Write a Python script that {script}.", "Explain {concept} in Python with an example.",
    "What are {concept}? Give a short code example.", "What is the time complexity of {algorithm}? Explain why.", "Write a SQL query that finds {query}.",
    "Write unit tests for a Python function that {task}.", "Write a bash one-liner that {script}.", "Give me an exercise about {concept}, with its solution.",
    "Write pseudocode for {algorithm}.", "Write a Python program with a class for {thing} and a small demonstration.",
)  # fmt: skip
COMPLETE = "Write a solution to the following problem and make sure that it passes the tests:"
COMPLETION = (
    COMPLETE,
    COMPLETE,
    "Complete the following Python function:",
    "Finish this function.",
    "Implement the body of this function:",
)
ABOUT = (
    "Explain what this code does:",
    "Add a docstring to this function:",
    "Write three test cases for this function:",
    "Can this code be improved?",
)
MODULES = (
    "textwrap statistics bisect heapq fractions colorsys calendar shlex string random difflib fnmatch glob shutil posixpath genericpath keyword copy "
    "functools operator numbers datetime base64 binascii hashlib html json.decoder json.encoder csv configparser urllib.parse ipaddress "
    "collections.__init__ itertools tokenize inspect ast dis pprint reprlib enum graphlib types contextlib abc sched queue tempfile filecmp "
    "linecache fileinput stat getpass gettext locale cmd pdb timeit trace tracemalloc zipfile tarfile gzip lzma bz2 plistlib netrc secrets hmac "
    "imghdr sndhdr wave mimetypes quopri uu email.utils email.header http.cookies smtplib socketserver uuid webbrowser turtle optparse argparse logging.__init__"
).split()


@cache
def library_functions() -> list[tuple[str, str, str]]:
    """Signature, docstring and source of short documented functions of the Python standard library, in a fixed order."""
    found = []
    for module in MODULES:
        try:
            spec = importlib.util.find_spec(module.removesuffix(".__init__"))
            text = Path(str(spec.origin)).read_text(encoding="utf-8") if spec else ""
            tree = ast.parse(text)
        except (ImportError, OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            doc = ast.get_docstring(node) or ""
            source = textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
            if 25 <= len(doc) <= 420:
                found.append((f"def {node.name}({ast.unparse(node.args)}):", doc, source if len(source) < 600 else ""))
    return sorted(set(found))


def completion(rng: Random) -> str:
    """A signature with a docstring, to be completed."""
    if rng.random() < 0.5:
        task, name, args, call, run = rng.choice(TASKS)
        doc = f"{task[0].upper()}{task[1:]}."
        if rng.random() < 0.7:
            doc += f"\n>>> {name}({call})\n{run(*eval(f'({call},)'))!r}"  # noqa: S307 - of the table above
        if rng.random() < 0.3:
            args = ", ".join(
                f"{a}: {'int' if len(a) == 1 else 'list' if a.endswith('s') else 'str'}" for a in args.split(", ")
            )
        head = f"def {name}({args}):"
    else:
        head, doc, _ = rng.choice(library_functions())
    body = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
    imports = rng.choice(("", "", "from typing import List\n\n\n", "\n\n"))
    quoted = f'    """{body.strip()}\n    """\n'
    return f"{rng.choice(COMPLETION)}\n```python\n{imports}{head}\n{quoted}\n```"


def request(rng: Random) -> str:
    kind = rng.random()
    task, name, args, _, _ = rng.choice(TASKS)
    values = {
        "task": task, "name": name, "args": args, "lang": rng.choice(LANGUAGES), "verb": rng.choice(VERBS), "object": rng.choice(OBJECTS),
        "where": rng.choice(WHERE), "thing": rng.choice(THINGS), "algorithm": rng.choice(ALGORITHMS), "script": rng.choice(SCRIPTS),
        "concept": rng.choice(CONCEPTS), "query": rng.choice(QUERIES),
    }  # fmt: skip
    if kind < 0.35:
        return completion(rng)
    if kind < 0.5:
        return rng.choice(PYTHON_TASK).format(**values)
    if kind < 0.9:
        return rng.choice(FREE[:2] if rng.random() < 0.45 else FREE).format(**values)
    source = rng.choice([source for _, _, source in library_functions() if source])
    return f"{rng.choice(ABOUT)}\n```python\n{source}\n```"
