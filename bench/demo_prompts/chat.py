# ruff: noqa: E501, SIM905 - lists of words are read as lines
"""Writing, explanation, reasoning, extraction and small talk: request templates and topics."""

from __future__ import annotations

from random import Random

TOPICS = (
    "photosynthesis|the French Revolution|black holes|sourdough bread|the water cycle|remote work|chess openings|coral reefs|"
    "the Roman Empire|electric cars|vaccines|jazz music|time management|the stock market|volcanoes|dinosaurs|meditation|"
    "the printing press|renewable energy|the human heart|gardening|credit scores|the Moon landing|honey bees|impressionist painting|"
    "earthquakes|the immune system|public libraries|ancient Egypt|machine learning|recycling|sleep|inflation|the Silk Road|yoga|"
    "photography|antibiotics|the solar system|democracy|marathon training|tea|DNA|the Great Wall of China|social media|plate tectonics|"
    "Shakespeare|nuclear power|dreams|coffee|the Industrial Revolution|wolves|online privacy|the ozone layer|probability|"
    "public speaking|the periodic table|space telescopes|rainforests|cryptography|minimalism|the Olympic Games|magnetism|glaciers|"
    "supply and demand|bicycles|migration of birds|the Renaissance|batteries|urban planning|fermentation|whales|insurance|"
    "mythology|blood pressure|satellites|camping|the Cold War|neural networks|compost|fairy tales|lighthouses|tides|origami|"
    "budgeting|bridges|vitamins|sign language|weather forecasts|museums|friendship|deserts|artificial intelligence|3D printing"
).split("|")
PLACES = (
    "a small fishing village|Kyoto|a space station|the Sahara|a busy train station|Lisbon|an old library|a mountain hut|"
    "New Orleans|a haunted castle|Iceland|a school kitchen|Nairobi|a night market|the Amazon|a lighthouse|Venice|a desert town"
).split("|")
PEOPLE = (
    "a retired teacher|a young inventor|a nervous chef|a curious robot|a lonely astronaut|a street musician|a detective|a shy librarian|"
    "a sailor|a grandmother|a clockmaker|a student|a wizard's apprentice|a farmer|a pilot|a nurse|a game designer|a dragon"
).split("|")
EMAILS = (
    "asking for a day off|thanking a colleague for help|declining an invitation|asking a landlord to repair the heating|"
    "applying for an internship|announcing a team meeting|complaining about a late delivery|asking a professor for an extension|"
    "welcoming a new employee|following up after a job interview|inviting neighbours to a party|cancelling a gym membership|"
    "asking for a refund|introducing a new product|apologising for a mistake|asking for feedback on a draft"
).split("|")
PROBLEMS = (
    "my laptop gets very hot|I cannot fall asleep at night|my houseplant has yellow leaves|I am nervous about an exam|"
    "my bread does not rise|I want to learn the guitar|I have to choose between two job offers|my bicycle chain keeps slipping|"
    "I want to save money for a trip|my dog barks at night|I forget names quickly|I am new in town and know nobody|"
    "my Wi-Fi is slow|I want to drink more water|my roommate is very loud|I would like to read more books|I have too many emails|"
    "I want to start running|my team misses deadlines|I need a present for my sister"
).split("|")
PAIRS = (
    "cats and dogs|tea and coffee|renting and buying a home|Python and JavaScript|trains and planes|a virus and a bacterium|"
    "weather and climate|stocks and bonds|novels and short stories|mammals and reptiles|solar and wind power|"
    "an alligator and a crocodile|speed and velocity|a simile and a metaphor|RAM and a hard disk|a lawyer and a judge|"
    "mitosis and meiosis|city life and country life|TCP and UDP|a comet and an asteroid|SQL and NoSQL databases|capitalism and socialism"
).split("|")
REVIEWS = (
    "The battery lasts two days, but the screen scratches easily.|Great food, slow service, and the music was far too loud.|"
    "I returned it after a week because the zipper broke.|Best purchase I have made this year!|It does what it says, nothing more.|"
    "The plot was thin but the actors saved the film.|Delivery took a month and nobody answered my messages.|"
    "Comfortable shoes, although a size too small.|The hotel was clean, central and friendly; I would go again."
).split("|")
FACTS = (
    "Marie Curie, born in Warsaw in 1867, won Nobel Prizes in physics in 1903 and in chemistry in 1911.|"
    "The meeting on 4 May in Hamburg was attended by Jonas Weber, Aylin Kaya and Peter Novak of Brightline Ltd.|"
    "Order 58213 contains two lamps at $35 each and a table at $120; it was shipped to Denver on March 3.|"
    "The Nile is about 6650 km long and flows through eleven countries, among them Uganda, Sudan and Egypt.|"
    "Our bakery opens at 6:30 on weekdays and at 8:00 on Saturdays; it is closed on Sundays.|"
    "In 2019 the company had 120 employees and a revenue of 14 million dollars; by 2022 it had 310 employees and 52 million."
).split("|")
RIDDLES = (
    "{a} is taller than {b}, and {b} is taller than {c}. Who is the shortest?",
    "If all {x} are {y} and some {y} are {z}, are some {x} certainly {z}?",
    "{a}, {b} and {c} finished a race. {a} was not first, {b} was last. Who won?",
    "A farmer has {n} sheep and all but {k} run away. How many are left?",
    "If it takes {k} machines {k} minutes to make {k} parts, how long do {n} machines need for {n} parts?",
    "Yesterday was two days before {day}. What day is tomorrow?",
    "{a} has three brothers, and each brother has two sisters. How many sisters does {a} have?",
    "Which word does not belong: {x}, {y}, {z}, and why?",
    "I have a {n}-liter bucket and a {k}-liter bucket. How could I measure exactly {d} liters of water?",
)
WORDS = "roses|metals|birds|poets|planets|robots|lemons|tigers|drums|violins|boats|clouds|spoons|whales|maps".split("|")
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday".split("|")
NAMES = "Alice|Bob|Carol|David|Eve|Frank|Gita|Hans|Ivy|Jack|Karim|Lena".split("|")
TEMPLATES = (
    "Explain {topic} in simple terms.", "What is {topic}?", "Write a short essay about {topic}.", "Give me five interesting facts about {topic}.",
    "Explain {topic} to a ten-year-old.", "Why is {topic} important?", "Write a poem about {topic}.", "What are common misconceptions about {topic}?",
    "Write a blog post introduction about {topic}.", "Create a quiz with three questions about {topic}, with answers.",
    "Summarize what everyone should know about {topic} in three sentences.", "What are the advantages and disadvantages of {topic}?",
    "How did {topic} change the world?", "Write an outline for a presentation on {topic}.", "Give me a list of questions to ask an expert on {topic}.",
    "How can I learn more about {topic}?", "Write a tweet about {topic}.", "Describe {topic} with a metaphor.", "Is {topic} a good subject for a school project? Give reasons.",
    "Write a story about {person} in {place}.", "Write the first paragraph of a novel set in {place}.", "Describe {place} at night.",
    "Write a dialogue between {person} and {person2}.", "Pretend you are {person}. Tell me about your day in {place}.", "You are {person}. Give me advice on {topic}.",
    "Plan a two-day trip to {place}.", "Write an email {email}.", "Write a short and polite email {email}.", "I need to write a message {email}. Can you help me?",
    "What can I do if {problem}?", "Help! {Problem}. What should I try first?", "Give me a step-by-step plan: {problem}.",
    "What is the difference between {pair}?", "Compare {pair} in a table.", "Compare and contrast {pair}.",
    "Is the following review positive, negative or mixed? Explain briefly.\n\n{review}", "Write a friendly answer to this customer review: \"{review}\"",
    "Extract all names, dates and numbers from this text as a JSON object.\n\n{fact}", "Rewrite this in one short sentence: {fact}",
    "Turn this into three questions and answers: {fact}", "{riddle}", "{riddle} Explain your reasoning.", "Translate into Spanish: \"{review}\"",
    "Write a haiku about {topic}.", "Write a slogan for a campaign about {topic}.", "Suggest a title for an article about {topic} and {topic2}.",
    "What do {topic} and {topic2} have in common?", "How would you explain {topic} to {person}?", "Write a motivational paragraph for someone who says: {problem}.",
    "List the steps to organise an event about {topic}.", "Write a product description for a book about {topic}.", "Imagine a world without {topic}. Describe it.",
    "What would happen if there were no {topic}?", "Name three famous people connected with {topic} and say why.", "Tell me a joke about {topic}.",
)  # fmt: skip


def request(rng: Random) -> str:
    topic, topic2 = rng.sample(TOPICS, 2)
    person, person2 = rng.sample(PEOPLE, 2)
    a, b, c = rng.sample(NAMES, 3)
    x, y, z = rng.sample(WORDS, 3)
    k = rng.randint(2, 9)
    n = k + rng.randint(2, 12)
    problem = rng.choice(PROBLEMS)
    riddle = rng.choice(RIDDLES).format(a=a, b=b, c=c, x=x, y=y, z=z, n=n, k=k, d=n - k, day=rng.choice(DAYS))
    return rng.choice(TEMPLATES).format(
        topic=topic, topic2=topic2, person=person, person2=person2, place=rng.choice(PLACES), email=rng.choice(EMAILS),
        problem=problem, Problem=problem[0].upper() + problem[1:], pair=rng.choice(PAIRS), review=rng.choice(REVIEWS),
        fact=rng.choice(FACTS), riddle=riddle,
    )  # fmt: skip
