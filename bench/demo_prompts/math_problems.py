# ruff: noqa: E501, SIM905 - lists of words are read as lines
"""Word problems and exercises: templates with random names, things and numbers."""

from __future__ import annotations

from random import Random

NAMES = (
    "Ava Ben Carla Dmitri Elena Farid Grace Hugo Ines Jamal Kira Liam Mona Nadia Omar Priya Quinn Rosa Samir Tara Uma Victor Wanda "
    "Xavier Yara Zoe Anna Bruno Chloe Diego Emma Felix Gina Hassan Iris Jonas Kate Leo Maria Nina Oscar Paula Ravi Sofia Tom"
).split()
THINGS = (
    "apples marbles stickers pencils books cookies stamps shells cards balloons oranges candles bottles muffins tickets coins "
    "roses tomatoes postcards beads notebooks bricks cupcakes badges toys peaches buttons crayons magnets eggs"
).split()
SHOPS = (
    "bakery|bookshop|garden centre|market stall|grocery store|toy shop|farm stand|school fair|flower shop|cinema".split(
        "|"
    )
)
ANIMALS = "goats chickens cows rabbits sheep ducks horses pigs turkeys cats".split()
JOBS = "gardener painter tutor plumber driver carpenter cleaner baker designer mechanic".split()
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
STEPS = (
    "",
    "",
    " Show your work.",
    " Explain each step.",
    " Think step by step.",
    "\nSolve this problem step by step.",
)

WORD_PROBLEMS = (
    "{a} has {n} {t}. {b} has {k} times as many {t} as {a}. How many {t} do they have together?",
    "{a} buys {k} boxes of {t} with {m} {t} in each box. After giving {s} {t} to {b}, how many {t} does {a} have left?",
    "A {shop} sells {t} for ${p} each. On Monday it sold {n} and on Tuesday it sold {s} more than on Monday. How much money did it take in over the two days?",
    "{a} earns ${p} an hour as a {job} and works {h} hours a day, {k} days a week. How much does {a} earn in {w} weeks?",
    "A train travels {v} miles in {h} hours. At the same speed, how far does it travel in {k} hours?",
    "{a} reads {m} pages a day. A book has {big} pages. After {k} days, how many pages are left to read?",
    "There are {n} {animals} on a farm. The farmer buys {s} more and then sells half of them. How many {animals} are left?",
    "{a} is {k} years older than {b}. In {h} years, the sum of their ages will be {n2}. How old is {b} now?",
    "A recipe for {k} people needs {m} grams of flour. How many grams of flour are needed for {w} people?",
    "{a} saves ${p} every week. {b} saves ${q} every week but started {k} weeks earlier. After {a} has saved for {w} weeks, how much have they saved in total?",
    "A shirt costs ${big}. It is on sale for {pct}% off, and {a} has a coupon for another ${p} off. How much does {a} pay?",
    "{a} fills a tank at {m} liters a minute, while a leak loses {k} liters a minute. How many minutes does it take until the tank holds {big} liters?",
    "A class of {n} students goes on a trip. A bus ticket costs ${p} and a museum ticket ${q} per student. There are {k} teachers who pay for the bus only. What is the total cost?",
    "{a} had {big} {t}. {a} gave {pct}% of them to {b} and then lost {k}. How many {t} does {a} have now?",
    "{a} runs {k} miles every day from Monday to Friday and {h} miles on each day of the weekend. How many miles does {a} run in {w} weeks?",
    "A parking garage has {k} floors with {m} spaces each. If {pct}% of the spaces are taken, how many are free?",
    "{a}, {b} and {c} share ${big}. {a} gets twice as much as {b}, and {b} gets ${p} more than {c}. How much does {c} get?",
    "It takes {a} {m} minutes to wash a car and {b} {k} minutes longer. How many hours do they need to wash {h} cars each, one after another?",
    "A box of {t} weighs {m} kilograms when full. {k} such boxes and an empty cart of {n} kilograms are put on a scale. What does it show?",
    "At a {shop}, {h} {t} cost ${p}. How much do {n} {t} cost if every fifth one is free?",
    "{a} drives to work at {v} miles an hour and back at {v2} miles an hour. The way is {m} miles long. How long is {a} on the road each day, in minutes?",
    "A rope of {big} meters is cut into two pieces, one of which is {m} meters longer than the other. How long is the shorter piece?",
    "{a} plants {k} rows of {t} with {m} in each row. {pct}% of them do not grow. How many do grow?",
    "{b} has {n} {t}, which is {k} less than {h} times the number that {a} has. How many {t} does {a} have?",
    "A school orders {n} chairs and {m} tables. A chair costs ${p} and a table {k} times as much. With a discount of {pct}%, what is the bill?",
    "A water bottle holds {m} ounces. {a} drinks {k} bottles a day and {b} drinks {h}. How many ounces do they drink together in a week?",
    "{a} scored {m}, {n} and {s} points in three games. How many points does {a} need in the fourth game for an average of {v}?",
    "A phone plan costs ${p} a month plus ${k} for every gigabyte above {h}. {a} used {w} gigabytes above the limit in each of {k} months. What did {a} pay in all?",
    "Half of the {n2} {t} in a basket are red, a quarter of the rest are green, and the others are yellow. How many are yellow?",
    "{a} bakes {k} trays of {m} cookies. {b} eats {h} and the rest are packed in bags of {w}. How many full bags are there?",
)
EXERCISES = (
    "Solve for $x$: ${k}x + {m} = {n}$.",
    "Find all real solutions of $x^2 - {s5}x + {p6} = 0$.",
    "What is the greatest common divisor of ${n}$ and ${n2}$?",
    "What is the least common multiple of ${k}$, ${h}$ and ${w}$?",
    "If $f(x) = {k}x^2 - {h}x + {w}$, what is $f({m}) - f({h})$?",
    "What is the remainder when ${k}^{{{m}}}$ is divided by ${w}$?",
    "How many positive divisors does ${n2}$ have?",
    "A triangle has sides of length ${k3}$, ${k4}$ and ${k5}$. What is its area?",
    "A circle has a circumference of ${n}\\pi$. What is its area, in terms of $\\pi$?",
    "The points $({k}, {h})$ and $({m}, {n})$ are the ends of a diameter of a circle. What is its center?",
    "What is the slope of the line through $({k}, {m})$ and $({w}, {n})$?",
    "In how many ways can ${h}$ people be seated in a row of ${h}$ chairs if two of them must sit together?",
    "Two fair dice are rolled. What is the probability that the sum is ${die}$? Express your answer as a common fraction.",
    "A bag has ${k}$ red and ${m}$ blue balls. Two are drawn without replacement. What is the probability that both are red?",
    "Evaluate $\\log_{{{k}}} {k}^{{{h}}} + \\log_{{10}} 1000$.",
    "Simplify $\\frac{{{n2}}}{{{n}}}$ and write it as a mixed number.",
    "What is the sum of the first ${m}$ terms of the arithmetic sequence ${k}, {kh}, \\ldots$ with common difference ${h}$?",
    "A geometric sequence starts with ${k}$ and has the ratio ${h}$. What is its ${w}$th term?",
    "Compute $\\sum_{{i=1}}^{{{m}}} ({k}i + {h})$.",
    "Find the value of $a$ for which the system ${k}x + y = {m}$ and ${k2}x + ay = {n}$ has no solution.",
    "If ${pct}\\%$ of a number is ${n}$, what is the number?",
    "Expand the product $(x + {k})(x - {h})(x + {w})$.",
    "What is the value of ${k} \\cdot {m} - {n} \\div {h} + {w}^2$?",
    "Convert the number ${n2}$ to base ${w}$.",
    "The sum of two numbers is ${n2}$ and their difference is ${k2}$. What is the larger number?",
    "How many integers between ${n}$ and ${big}$ are divisible by ${w}$?",
    "The angles of a triangle are in the ratio ${k}:{h}:{w}$. What is the largest angle, in degrees?",
    "A rectangular box has the dimensions ${k}$, ${m}$ and ${w}$. What is its surface area?",
    "Find the distance between the points $({k}, -{h})$ and $(-{m}, {w})$.",
    "If $\\sin\\theta = \\frac{{{k3}}}{{{k5}}}$ and $\\theta$ is acute, what is $\\cos\\theta$?",
    "What is the units digit of ${m}^{{{n}}}$?",
    "Factor $x^2 - {sq}$ completely.",
    "The average of ${h}$ numbers is ${n}$. When one more number is added the average becomes ${n1}$. What is the number?",
    "Find the vertex of the parabola $y = x^2 - {k2}x + {n}$.",
    "How many different committees of ${k3}$ people can be chosen from ${m}$ people?",
    "Write $\\sqrt{{{sqk}}}$ in simplest radical form.",
    "Solve the inequality $|x - {k}| < {m}$.",
    "If $x + y = {m}$ and $xy = {w}$, what is $x^2 + y^2$?",
    "Find the derivative of $f(x) = {k}x^{{{h}}} - {m}x$.",
    "Convert the complex number $({k} + {h}i)({w} - i)$ to the form $a + bi$.",
    "What is the area of the triangle with vertices $(0, 0)$, $({k}, 0)$ and $({h}, {m})$?",
    "A cylinder has radius ${k}$ and height ${m}$. What is its volume?",
    "If ${k}$ machines make ${n}$ parts in ${h}$ hours, how many parts do ${w}$ machines make in ${m}$ hours?",
    "For what value of $c$ does $x^2 + {k2}x + c$ become a perfect square?",
    "Find the inverse of the function $f(x) = {k}x - {m}$.",
    "What is the smallest positive integer that leaves a remainder of 1 when divided by ${k}$, ${h}$ and ${w}$?",
    "Two complementary angles differ by ${m}$ degrees. What is the smaller one?",
    "Evaluate the determinant of the matrix $\\begin{{pmatrix}} {k} & {h} \\\\ {m} & {w} \\end{{pmatrix}}$.",
)


def values(rng: Random) -> dict[str, object]:
    a, b, c = rng.sample(NAMES, 3)
    k, h, w = rng.sample(range(2, 10), 3)
    m, n = rng.randint(5, 30), rng.randint(12, 90)
    scale = rng.randint(1, 6)
    return {
        "a": a, "b": b, "c": c, "t": rng.choice(THINGS), "shop": rng.choice(SHOPS), "animals": rng.choice(ANIMALS),
        "job": rng.choice(JOBS), "k": k, "h": h, "w": w, "m": m, "n": n, "n1": n + 1, "n2": 2 * n, "s": rng.randint(3, 11),
        "p": rng.randint(2, 25), "q": rng.randint(3, 15), "v": rng.choice(range(30, 91, 5)), "v2": rng.choice(range(20, 61, 5)),
        "big": rng.choice(range(100, 500, 10)), "pct": rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 60)), "die": rng.randint(3, 11),
        "k2": 2 * k, "k3": 3 * scale, "k4": 4 * scale, "k5": 5 * scale, "kh": k + h, "s5": k + h, "p6": k * h, "sq": m * m, "sqk": k * k * h,
    }  # fmt: skip


def word_problem(rng: Random) -> str:
    text = rng.choice(WORD_PROBLEMS).format(**values(rng))
    return text + (BOXED if rng.random() < 0.7 else rng.choice(STEPS))


def exercise(rng: Random) -> str:
    text = rng.choice(EXERCISES).format(**values(rng))
    return text + (BOXED if rng.random() < 0.75 else rng.choice(STEPS))
