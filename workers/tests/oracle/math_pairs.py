"""Pairs of a right answer and what a model said, with the verdict of math-verify 0.9.0: writes math_pairs.json beside this
file. Run it where `pip install math-verify==0.9.0` was run; tests read the committed verdicts alone."""

import json
from pathlib import Path

from math_verify import parse, verify

# Kind, right answer, what models said: in a box where there is none in it.
PAIRS = [
    ("integer", "42", ["42", "43", "042", "42.0", "42.", "+42", "-42", "$42$", "4 2", "forty-two", "42 apples", "x=42"]),
    ("integer", "-7", ["-7", "7", "- 7", "(-7)", "−7", "-7.0"]),
    ("integer", "0", ["0", "0.0", "-0", "1", "", "\\emptyset", "00"]),
    ("thousands", "1234567", ["1,234,567", "1234567", "1{,}234{,}567", "1\\,234\\,567", "1 234 567", "1,234,568", "12,34,567"]),
    ("thousands", "10,000", ["10000", "10,000", "10.000", "1e4", "10^4", "(10, 000)"]),
    ("fraction", "\\frac{1}{2}", ["1/2", "\\frac{1}{2}", "\\dfrac12", "\\tfrac{1}{2}", "\\frac12", "0.5", ".5", "\\frac{2}{4}", "50\\%", "2^{-1}", "\\frac{1}{3}", "1/3", "-\\frac{1}{2}", "\\frac{2}{1}"]),
    ("fraction", "\\frac{3}{4}", ["0.75", "75/100", "\\frac{-3}{-4}", "\\frac{3}{4}x", "3:4", "0.7500", "0.751", "\\left(\\frac{3}{4}\\right)", "\\frac 34"]),
    ("fraction", "-\\frac{5}{3}", ["-5/3", "\\frac{-5}{3}", "\\frac{5}{-3}", "-1\\frac{2}{3}", "-1.6667", "-1.666667", "\\frac{5}{3}"]),
    ("mixed", "\\frac{7}{2}", ["3\\frac{1}{2}", "3 1/2", "3.5", "3\\frac12", "\\frac{31}{2}", "7 / 2"]),
    ("decimal", "3.14", ["3.14", "3.140", "314/100", "\\frac{157}{50}", "\\pi", "3.1", "3.15", "3.141"]),
    ("decimal", "0.333333", ["\\frac{1}{3}", "0.333333", "0.33", "0.3333333"]),
    ("decimal", "\\frac{1}{3}", ["0.333333", "0.3333", "0.33", "0.3333333333", "33.3\\%"]),
    ("percent", "25\\%", ["25\\%", "25%", "0.25", "25", "1/4", "\\frac{1}{4}", "24\\%"]),
    ("percent", "25", ["25\\%", "25%", "0.25"]),
    ("percent", "12.5\\%", ["12.5\\%", "12.5 \\%", "0.125", "\\frac{1}{8}", "12.5"]),
    ("units", "15", ["15 cm", "15\\text{ cm}", "15\\,\\text{cm}", "15 \\mathrm{~cm}", "15\\text{ cm}^2", "15 cm^2", "15 dollars", "\\$15", "15\\ \\text{meters}", "16\\text{ cm}", "15 km/h", "15\\text{ km/h}"]),
    ("units", "15\\text{ cm}", ["15", "15 cm", "15\\text{ m}", "15\\text{ cm}", "150\\text{ mm}", "16\\text{ cm}"]),
    ("units", "\\$3.50", ["3.50", "\\$3.50", "$3.5$", "3.5", "\\$3.05", "3.50\\text{ dollars}"]),
    ("degrees", "60^\\circ", ["60", "60^\\circ", "60^{\\circ}", "60°", "60\\text{ degrees}", "60\\degree", "\\frac{\\pi}{3}", "61^\\circ"]),
    ("degrees", "45", ["45^\\circ", "45^{\\circ}", "45 degrees", "\\frac{\\pi}{4}"]),
    ("power", "1024", ["2^{10}", "2^10", "4^5", "32^2", "2^{9}", "2\\cdot 2^9", "1.024\\times 10^3", "1.024 \\cdot 10^{3}"]),
    ("power", "10^{-3}", ["0.001", "\\frac{1}{1000}", "1\\times 10^{-3}", "1e-3", "10^{-4}", "-1000"]),
    ("power", "2^{100}", ["2^{100}", "4^{50}", "1267650600228229401496703205376", "1267650600228229401496703205377", "2^{99}\\cdot 2", "2^{101}"]),
    ("factorial", "120", ["5!", "120", "4!", "5\\cdot 4!"]),
    ("binomial", "10", ["\\binom{5}{2}", "\\binom{5}{3}", "\\binom{5}{4}", "10"]),
    ("root", "\\sqrt{2}", ["\\sqrt{2}", "\\sqrt2", "2^{1/2}", "2^{0.5}", "\\frac{2}{\\sqrt{2}}", "1.41421356", "1.414214", "1.414", "\\sqrt{3}", "sqrt(2)", "-\\sqrt{2}"]),
    ("root", "2\\sqrt{3}", ["\\sqrt{12}", "2\\sqrt3", "2 \\cdot \\sqrt{3}", "\\frac{6}{\\sqrt{3}}", "3\\sqrt{2}", "3.4641016", "2*sqrt(3)", "\\sqrt{13}"]),
    ("root", "\\sqrt[3]{8}", ["2", "8^{1/3}", "\\sqrt[3]{8}", "\\sqrt{8}", "2.0"]),
    ("root", "\\frac{\\sqrt{3}}{3}", ["\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt 3}{3}", "\\tan 30^\\circ", "\\tan\\frac{\\pi}{6}", "3^{-1/2}", "\\frac{\\sqrt{3}}{2}", "\\sqrt{\\frac13}"]),
    ("root", "1+\\sqrt{5}", ["\\sqrt{5}+1", "1 + \\sqrt{5}", "\\frac{4}{\\sqrt{5}-1}", "1-\\sqrt{5}", "3.236068", "\\sqrt{6+2\\sqrt{5}}"]),
    ("pi", "\\frac{\\pi}{2}", ["\\pi/2", "\\frac{1}{2}\\pi", "0.5\\pi", "1.5707963", "\\frac{\\pi}{3}", "\\frac{2\\pi}{4}", "pi/2", "90^\\circ"]),
    ("pi", "12\\pi", ["12\\pi", "12 \\pi", "12\\cdot\\pi", "37.699", "\\pi 12", "12 pi", "12\\pi\\text{ cm}^2", "13\\pi", "12\\pi \\text{ square units}"]),
    ("trig", "\\sin(60^\\circ)", ["\\frac{\\sqrt{3}}{2}", "\\sin 60^\\circ", "\\cos 30^\\circ", "\\frac{1}{2}"]),
    ("trig", "\\cos(x)", ["\\cos x", "\\cos(x)", "\\sin(x+\\frac{\\pi}{2})", "\\sin(x)", "\\cos(-x)"]),
    ("log", "\\ln 2", ["\\ln(2)", "\\log 2", "\\ln 2", "-\\ln\\frac{1}{2}", "\\ln 3", "0.693147", "\\log_2 2", "\\frac{\\ln 4}{2}"]),
    ("log", "3", ["\\log_2 8", "\\log_{2}{8}", "\\log_{10} 1000", "\\log_3 8"]),
    ("exp", "e^2", ["e^2", "e^{2}", "\\exp(2)", "7.389056", "e^3", "e\\cdot e"]),
    ("polynomial", "x^2+2x+1", ["(x+1)^2", "x^2 + 2x + 1", "1+2x+x^2", "(x+1)(x+1)", "x^2+2x", "x^{2}+2 x+1", "(x-1)^2", "x(x+2)+1", "y^2+2y+1"]),
    ("polynomial", "2x-3", ["2x-3", "-3+2x", "2(x-1.5)", "2 x - 3", "3-2x", "2*x-3", "2\\cdot x-3", "\\frac{4x-6}{2}"]),
    ("polynomial", "(x-2)(x+5)", ["x^2+3x-10", "(x+5)(x-2)", "(x-5)(x+2)", "x^2-10+3x"]),
    ("rational", "\\frac{1}{x+1}", ["\\frac{1}{1+x}", "(x+1)^{-1}", "\\frac{x}{x^2+x}", "\\frac{1}{x-1}", "1/(x+1)"]),
    ("rational", "\\frac{x^2-1}{x-1}", ["x+1", "x-1", "1+x"]),
    ("variables", "a+b", ["b+a", "a+b", "a-b", "ab", "A+B"]),
    ("variables", "\\frac{ab}{c}", ["\\frac{a b}{c}", "a\\cdot\\frac{b}{c}", "\\frac{ba}{c}", "\\frac{ac}{b}", "ab/c"]),
    ("variables", "2\\pi r", ["2\\pi r", "2r\\pi", "\\pi r^2", "2 \\pi r"]),
    ("equation", "x=5", ["5", "x=5", "x = 5", "5=x", "x=6", "y=5"]),
    ("equation", "y=2x+3", ["y=2x+3", "y = 2x + 3", "2x+3", "2x-y+3=0", "y=3x+2", "y=3+2x"]),
    ("equation", "x^2+y^2=25", ["x^2+y^2=25", "x^2+y^2-25=0", "y^2+x^2=25", "x^2+y^2=5", "25=x^2+y^2"]),
    ("inequality", "x>3", ["x>3", "3<x", "x \\gt 3", "x\\ge 3", "x<3", "(3,\\infty)"]),
    ("inequality", "x\\leq 2", ["x\\le 2", "x \\leq 2", "2\\ge x", "x<2", "(-\\infty,2]"]),
    ("interval", "[1,3)", ["[1,3)", "[1, 3)", "(1,3)", "[1,3]", "\\left[1,3\\right)", "[1.0,3)", "1\\le x<3"]),
    ("interval", "(-\\infty,2)\\cup(3,\\infty)", ["(-\\infty,2)\\cup(3,\\infty)", "(-\\infty, 2) \\cup (3, \\infty)", "(3,\\infty)\\cup(-\\infty,2)", "(-\\infty,2]\\cup(3,\\infty)", "(-\\infty,2)\\cup(3,+\\infty)", "(-\\infty,2)"]),
    ("tuple", "(1,2)", ["(1,2)", "(1, 2)", "(2,1)", "\\left(1,2\\right)", "(1,2,3)", "1,2", "(1.0,2.0)", "\\left( 1, 2 \\right)", "(\\frac{2}{2},\\sqrt{4})"]),
    ("tuple", "(\\frac{1}{2},-3)", ["(0.5,-3)", "(\\frac12, -3)", "(-3,\\frac12)", "\\left(\\frac{1}{2},-3\\right)", "(1/2,-3)"]),
    ("tuple", "(1,2,3)", ["(1,2,3)", "(1,3,2)", "[1,2,3]", "(1,2)", "1,2,3"]),
    ("set", "\\{1,2,3\\}", ["\\{1,2,3\\}", "\\{3,2,1\\}", "\\{1,2\\}", "\\left\\{1,2,3\\right\\}", "1,2,3", "\\{1,2,3,3\\}", "{1,2,3}", "\\{1,2,4\\}"]),
    ("list", "1,2", ["1,2", "2,1", "1, 2", "1 and 2", "1\\text{ and }2", "x=1,2", "x=1, x=2", "1,3", "\\{1,2\\}", "1"]),
    ("list", "-1, 3", ["x=-1 \\text{ or } x=3", "3,-1", "-1,3", "1,-3"]),
    ("plus_minus", "\\pm 2", ["\\pm 2", "\\pm2", "2,-2", "-2,2", "2", "\\{-2,2\\}"]),
    ("complex", "3+4i", ["3+4i", "4i+3", "3-4i", "3 + 4 i", "5", "4+3i"]),
    ("complex", "i", ["i", "-i", "\\sqrt{-1}", "1"]),
    ("matrix", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", ["\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}"]),
    ("infinity", "\\infty", ["\\infty", "+\\infty", "-\\infty", "\\infty "]),
    ("choice", "B", ["B", "\\text{B}", "(B)", "\\textbf{(B)}", "C", "b", "\\mathrm{B}", "\\text{(B)}"]),
    ("words", "\\text{even}", ["\\text{even}", "even", "\\text{odd}", "\\text{Even}"]),
    ("absolute", "|x|", ["|x|", "\\left|x\\right|", "\\sqrt{x^2}", "x"]),
    ("absolute", "5", ["|-5|", "|5|", "|-6|"]),
    ("floor", "2", ["\\lfloor 2.5\\rfloor", "\\lceil 1.5\\rceil", "\\lfloor 3.5\\rfloor"]),
]

# Right answer, and whole texts of a model.
TEXTS = [
    ("text", "18", "So she makes 9 * 2 = $18 every day.\n#### 18"),
    ("text", "18", "She makes 9 * 2 = 19.\n#### 19"),
    ("text", "72", "The final answer is 72."),
    ("text", "72", "The answer is $72$. I hope it is correct."),
    ("text", "72", "First 48, then 24, so 48 + 24 = 72 clips in total."),
    ("text", "72", "First 72, then 24, so there are 24 clips."),
    ("text", "5", "\\boxed{4} is wrong; the right one is \\boxed{5}."),
    ("text", "5", "\\boxed{5} is wrong; the right one is \\boxed{4}."),
    ("text", "\\frac{1}{2}", "Thus the probability is $\\frac{1}{2}$."),
    ("text", "\\frac{1}{2}", "Hence $p = \\frac{1}{2}$."),
    ("text", "7", "I do not know."),
    ("text", "3", "\\boxed{\\text{The answer is }3}"),
    ("text", "\\frac{3}{4}", "We get $$\\boxed{\\frac{3}{4}}$$ as wanted."),
    ("text", "8", "<think>maybe \\boxed{9}</think> The answer is \\boxed{8}."),
    ("text", "1000", "The total is 1,000."),
    ("text", "-3", "Therefore x = -3"),
    ("text", "-3", "Therefore x = 3"),
    ("text", "2.5", "The final answer is: 2.5"),
    ("text", "12", "\\boxed{12"),
    ("text", "(1,2)", "The point is $(1, 2)$."),
]


def verdict(right: str, said: str) -> bool:
    return verify(parse("\\boxed{" + right + "}"), parse(said))


def main() -> None:
    rows = []
    for kind, right, answers in PAIRS:
        for answer in answers:
            said = "The answer is \\boxed{" + answer + "}."
            rows.append({"kind": kind, "right": right, "said": said, "equal": verdict(right, said)})
    for kind, right, said in TEXTS:
        rows.append({"kind": kind, "right": right, "said": said, "equal": verdict(right, said)})
    lines = ",\n".join(" " + json.dumps(row, ensure_ascii=False) for row in rows)
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(rows)} pairs, {sum(row['equal'] for row in rows)} of them equal")


if __name__ == "__main__":
    main()
