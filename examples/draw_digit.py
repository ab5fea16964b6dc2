"""Draw a digit with a thick pen, as an image for `edgepipe run BUNDLE --image`.

python examples/draw_digit.py 4 four.png
"""

from __future__ import annotations

import sys

from PIL import Image, ImageDraw, ImageFilter

SIZE, PEN = 192, 22
# Strokes as corners, in percent of the width and the height.
STROKES = {
    "1": [[(38, 30), (54, 15), (54, 85)]],
    "4": [[(55, 15), (28, 58), (75, 58)], [(62, 40), (62, 88)]],
}


def main() -> None:
    """Draw the digit of the first argument into the file of the second."""
    digit, path = sys.argv[1:]
    image = Image.new("L", (SIZE, SIZE), "white")
    pen = ImageDraw.Draw(image)
    for stroke in STROKES[digit]:
        corners = [(x * SIZE / 100, y * SIZE / 100) for x, y in stroke]
        pen.line(corners, fill="black", width=PEN, joint="curve")
        for x, y in corners:
            pen.circle((x, y), PEN / 2, fill="black")
    image.filter(ImageFilter.GaussianBlur(6)).save(path)


if __name__ == "__main__":
    main()
