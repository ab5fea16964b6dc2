"""The words that prompt templates are filled with, written for this. Every list has a part that is held out."""

from __future__ import annotations

TOPICS = (
    # nature and science
    "gravity", "photosynthesis", "black holes", "the water cycle", "plate tectonics", "evolution", "DNA", "magnets",
    "volcanoes", "the immune system", "lightning", "the solar system", "atoms", "vaccines", "climate change",
    "the speed of light", "bacteria", "earthquakes", "the periodic table", "ocean currents", "the human brain",
    "sleep",
    "nuclear energy", "sound waves", "the greenhouse effect", "fossils", "stem cells", "the moon", "tides", "rainbows",
    "antibiotics", "genetics", "the nervous system", "ecosystems", "photons", "radioactivity", "chemical reactions",
    "the scientific method", "probability", "prime numbers", "calculus", "statistics", "geometry", "algebra",
    "entropy",
    "relativity", "quantum mechanics", "friction", "osmosis", "hibernation", "migration of birds", "coral reefs",
    "rainforests", "deserts", "glaciers", "hurricanes", "honey bees", "mushrooms", "sharks", "dinosaurs", "whales",
    # technology
    "machine learning", "the internet", "blockchain", "electric cars", "solar panels", "3D printing", "encryption",
    "computer viruses", "cloud computing", "robotics", "smartphones", "databases", "operating systems", "open source",
    "search engines", "social media", "virtual reality", "batteries", "satellites", "GPS", "programming languages",
    "version control", "web design", "artificial intelligence", "neural networks", "cybersecurity", "microchips",
    "wind turbines", "self-driving cars", "video games", "email", "data privacy", "recursion", "algorithms", "Linux",
    "unit testing", "APIs", "compilers", "the stock market", "wireless networks", "digital cameras", "drones",
    "bridges",
    # history and society
    "the Roman Empire", "ancient Egypt", "the Renaissance", "the Industrial Revolution", "World War II", "democracy",
    "the Silk Road", "the printing press", "the Great Wall of China", "the French Revolution", "the Cold War",
    "Vikings",
    "the space race", "human rights", "inflation", "taxes", "elections", "the United Nations", "immigration",
    "education",
    "supply and demand", "globalization", "entrepreneurship", "marketing", "personal finance", "retirement savings",
    "credit cards", "insurance", "public transport", "urban planning", "recycling", "poverty", "volunteering",
    "justice",
    "the Olympic Games", "ancient Greece", "the Middle Ages", "pirates", "knights and castles", "money", "trade",
    "law",
    # daily life
    "healthy eating", "running", "yoga", "meditation", "time management", "public speaking", "learning a new language",
    "job interviews", "working from home", "stress", "friendship", "parenting", "gardening", "cooking pasta", "coffee",
    "chocolate", "baking bread", "weight loss", "strength training", "swimming", "cycling", "hiking", "camping",
    "chess",
    "photography", "painting", "playing the guitar", "reading books", "creative writing", "poetry", "music theory",
    "jazz",
    "movies", "theatre", "dancing", "fashion", "interior design", "travelling on a budget", "road trips",
    "house plants",
    "dogs", "cats", "pet care", "first aid", "dental care", "vitamins", "drinking water", "breakfast", "tea", "wine",
    "cheese", "vegetarian food", "spices", "sushi", "pizza", "soup", "birthday parties", "weddings", "moving house",
    "saving money", "studying for exams", "note taking", "procrastination", "self-confidence", "happiness", "teamwork",
    "leadership", "negotiation", "customer service", "email etiquette", "conflict at work", "morning routines",
    "football",
    "basketball", "tennis", "board games", "sewing", "woodworking", "home repairs", "bicycles", "trains", "airplanes",
    "noise in the city", "loneliness", "memory", "dreams", "humour", "curiosity", "patience", "honesty", "courage",
)  # fmt: skip

PLACES = (
    "Paris", "Tokyo", "New York", "London", "Rome", "Berlin", "Sydney", "Cairo", "Mumbai", "Rio de Janeiro", "Iceland",
    "Canada", "Brazil", "Japan", "Kenya", "Mexico", "Norway", "Spain", "Italy", "Thailand", "a small village",
    "the desert", "a lighthouse", "an old library", "a space station", "the Amazon", "a haunted house",
    "the North Pole",
    "a busy market", "a mountain cabin", "the bottom of the sea", "a train station", "China", "Portugal", "Greece",
    "India", "Australia", "South Africa", "Morocco", "Peru", "Vienna", "San Francisco", "Istanbul", "Vietnam",
)  # fmt: skip

CHARACTERS = (
    "a young girl", "an old fisherman", "a curious robot", "a talking cat", "a lonely astronaut", "a brave mouse",
    "a retired detective", "a clumsy wizard", "two brothers", "a shy musician", "a lost dog", "a kind dragon",
    "a clever fox", "a tired nurse", "a student named Maria", "a baker named Tom", "a painter", "a time traveller",
    "a pirate captain", "a school teacher", "a farmer and his daughter", "a ghost", "a princess who loves science",
    "a bus driver", "a gardener named Lily", "a scientist", "a boy named Sam", "an owl", "a knight without a horse",
)  # fmt: skip

OBJECTS = (
    "a golden key", "an old map", "a broken clock", "a letter", "a red umbrella", "a magic book", "a small box",
    "a photograph", "a strange stone", "a violin", "a lost ring", "a secret door", "a wooden boat", "a mirror",
    "a blue bicycle", "a music box", "a candle", "a telescope", "a coin", "a seed", "a painting", "a lantern",
)  # fmt: skip

PROFESSIONS = (
    "a doctor", "a software engineer", "a teacher", "a chef", "a journalist", "a lawyer", "an architect", "a nurse",
    "a data scientist", "a farmer", "a pilot", "a musician", "a project manager", "a carpenter", "a psychologist",
    "a librarian", "an electrician", "a graphic designer", "a police officer", "a biologist", "an accountant",
)  # fmt: skip

PRODUCTS = (
    "a water bottle", "running shoes", "a coffee machine", "a travel app", "an online course", "a bakery",
    "a backpack",
    "noise-cancelling headphones", "a fitness tracker", "a bookshop", "an electric bike", "a skin cream",
    "a mobile game",
    "a cleaning service", "a smart lamp", "handmade soap", "a restaurant", "a garden tool", "a language school",
)  # fmt: skip

LANGUAGES = ("Python", "JavaScript", "Java", "C", "C++", "SQL", "Bash", "Go", "Rust", "HTML and CSS")

PROGRAMS = (
    "reverses a string", "checks whether a number is prime", "computes the factorial of a number",
    "finds the largest number in a list", "counts the words in a text", "sorts a list of numbers",
    "returns the nth Fibonacci number", "checks whether a word is a palindrome", "removes duplicates from a list",
    "converts Celsius to Fahrenheit", "computes the average of a list", "reads a file line by line",
    "merges two sorted lists", "counts the vowels in a string", "generates a random password",
    "finds the common elements of two lists", "computes the greatest common divisor", "flattens a nested list",
    "finds the second largest element", "checks whether two words are anagrams", "adds two matrices",
    "implements binary search", "implements a stack", "implements a queue", "prints a multiplication table",
    "validates an email address", "reads a CSV file and sums a column", "downloads a web page",
    "simulates a dice roll",
    "implements a simple calculator", "prints the numbers from 1 to 100", "converts a number to binary",
    "finds the longest word in a sentence", "counts how often each letter occurs", "shuffles a deck of cards",
    "computes compound interest", "checks whether a year is a leap year", "reverses a linked list",
    "computes the area of a circle", "finds all even numbers in a list", "capitalizes every word of a sentence",
)  # fmt: skip

EVENTS = (
    "a day off next Friday", "a meeting about the budget", "a delayed delivery", "a job application",
    "a birthday party",
    "a refund for a broken phone", "a recommendation letter", "a late assignment", "the new office hours",
    "a cancelled flight", "an invitation to dinner", "a noisy neighbour", "a change of address", "a project deadline",
    "a salary increase", "feedback on a presentation", "a lost package", "a school trip", "a software problem",
    "a thank-you for a gift", "an interview next week", "a conference in May", "a missed appointment",
)  # fmt: skip

SENTENCES = (
    "Me and him went to the store yesterday for buy some milk.",
    "The meeting was very long and it was also boring and nobody did listen.",
    "She don't like the new phone because it is too much big.",
    "Our company makes good products and we are selling them to many people in the world.",
    "I am writing to tell you that I can not come to the party because of I am sick.",
    "The weather today is bad, it rain since morning and the streets is full of water.",
    "He finished his homework fast and then he plays games until late night.",
    "The book tell the story of a man who lost everything but find hope again.",
    "If I would have more time, I will learn to play the piano.",
    "Their going to there house to get they're things.",
    "The results of the test was not what we was expecting at all.",
    "You should to drink more water, it help you to feel better.",
    "The city have many old buildings and a big park where peoples walk with dogs.",
    "Yesterday I seen a movie who was really interesting but a bit to long.",
)

PASSAGES = (
    "The old bridge was closed in March after engineers found cracks in two of its pillars. Repairs will take eight "
    "months and cost four million dollars. Until then, traffic is sent through the tunnel, where drivers wait up to "
    "forty minutes in the morning.",
    "Bees visit a flower for its nectar and carry pollen from one plant to the next. Without them, many fruits and "
    "vegetables would not grow. In the last twenty years the number of wild bees has fallen, because of pesticides and "
    "the loss of meadows.",
    "The team tested the new battery for a year. It kept ninety percent of its charge after a thousand cycles and did "
    "not overheat even at fifty degrees. The researchers hope to build larger cells next year, but the material is "
    "still expensive.",
    "Anna opened her bakery in a small street behind the station. At first only a few neighbours came. Then a "
    "newspaper wrote about her rye bread, and by the summer people were standing in line before seven in the morning.",
    "Working from home saves the time of commuting, but it has a price. Many employees say that they work longer "
    "hours and miss the talks with their colleagues. Companies now try a mix of two days at home and three in the "
    "office.",
    "The museum shows two hundred paintings from the nineteenth century. It is open every day except Monday, from ten "
    "to six. Children pay nothing, students pay half. A guided tour in English starts at eleven.",
    "The storm reached the coast on Sunday night. Trees fell on roads, and ten thousand homes had no electricity until "
    "Tuesday. Nobody was hurt, since schools and shops had closed early.",
    "In a study with three hundred students, those who slept at least eight hours before the exam scored better than "
    "those who stayed up to learn. The effect was largest in mathematics.",
)

TRANSLATIONS = ("French", "Spanish", "German", "Italian", "Portuguese")

PHRASES = (
    "Good morning, how are you?", "Where is the train station?", "I would like a cup of coffee, please.",
    "The weather is beautiful today.", "My name is Anna and I live in Berlin.", "Thank you very much for your help.",
    "How much does this cost?", "I have two brothers and one sister.", "The book is on the table.",
    "We are going to the beach tomorrow.", "Can you help me with my homework?", "The cat sleeps on the sofa.",
)  # fmt: skip
