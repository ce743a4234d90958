"""A text to compare settings on when the user gives none: plain prose, a list, a program and a conversation.

Owns the words, which were written for this purpose.
"""

from __future__ import annotations

SAMPLE = """\
The ferry to the island leaves at seven in the morning and comes back after dark. In summer it is full of families with
bicycles and dogs; in winter it carries the post, the doctor, and two teachers who live on the mainland. The captain has made
the trip for twenty-six years. She says that the sea has never been the same twice, and that the passengers always are.

On the island there is one road. It begins at the harbour, passes the church and the school, and ends at a farm that makes
cheese. Nobody locks a door. When the school needed a new roof, every house gave a day of work, and those who could not climb
cooked for the others. The old roof became a shed for the boats, because wood is expensive where no trees grow.

Scientists came last year to count the birds. They put small rings on the legs of four hundred puffins and wrote down where
each one had its nest. A puffin can fly eighty kilometres an hour and dive to sixty metres, but it lands badly. The children
learned to hold one without hurting it: one hand over the wings, the other under the feet.

How to make bread without a machine:

1. Mix 500 g of flour, 10 g of salt and 3 g of dry yeast in a large bowl.
2. Add 350 ml of cold water and stir until no dry flour is left.
3. Cover the bowl and let it rest for twelve hours at room temperature.
4. Fold the dough four times, shape it into a ball, and let it rise for one hour.
5. Bake it at 240 degrees in a closed pot for thirty minutes, then ten minutes without the lid.

def moving_average(values, width):
    \"\"\"Return the mean of each `width` neighbours.\"\"\"
    if width < 1 or width > len(values):
        raise ValueError(f"width must be from 1 to {len(values)}")
    total = sum(values[:width])
    means = [total / width]
    for old, new in zip(values, values[width:]):
        total += new - old
        means.append(total / width)
    return means

Question: Why is the sky blue during the day and red in the evening?
Answer: Sunlight contains all colours. The molecules of the air scatter blue light much more than red light, so that blue
reaches our eyes from every direction. In the evening the light has to pass through much more air. Most of the blue is
scattered away before it arrives, and the red is left.

Question: What is the capital of France, and which river flows through it?
Answer: The capital of France is Paris. The river is the Seine, which flows through the middle of the city.

Dear Ms. Keller, thank you for your letter of 14 March. We have checked the invoice (no. 20-4471) and found that you are
right: the delivery of two tables was counted twice. We will return EUR 389.50 to your account within five working days.
Please accept our apologies for the mistake. With kind regards, Thomas Brandt.
"""
