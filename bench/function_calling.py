"""Function calling, judged by BFCL: the same questions to Hearth and to llama.cpp's server, on the same model file.

    python -m venv venv && venv/bin/pip install --no-deps -r bench/requirements-function-calling.txt
    venv/bin/python bench/function_calling.py --hearth target/release/hearth --model MODEL.gguf

Seeded questions of BFCL's categories simple_python, multiple and parallel go to `/v1/chat/completions` as BFCL's own handler
for OpenAI's API sends them (its conversion of function documents to tools, its messages), greedy. Tool calls are judged by BFCL's
own AST checker, as its runner does for models with native function calling; a call that stays in the content is no call.
The request adds only what both servers need to do the same: `tool_choice`, a bound on the answer, and
`parallel_tool_calls: true` where several calls are asked for (and false elsewhere, with `--tool-choice required`).

Beside the verdicts: whether each answer parses, which means no HTTP error, a finish reason that fits, and for each call the name
of a declared tool and a JSON object as arguments. Answers that were cut by the bound are counted apart.

Each answer is kept under --answers as soon as it is there; --resume goes on after an interruption, and judges kept answers anew.
Exit status: 0 when Hearth is not lower overall, at most 3 points lower in each category, and each of its answers parses; else 1.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import servers

HERE = Path(__file__).resolve().parent
CATEGORIES = ["simple_python", "multiple", "parallel"]
ALLOWED_GAP = 3
# The checker asks BFCL's table of models one thing: whether dots in names were sent as underscores. Ours were.
CHECKER_MODEL = "openai-dialect"


def load_bfcl():
    """BFCL's data, conversion and checker, without the SDKs of all vendors and the parsers of Java that its modules pull in."""
    os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp(prefix="bfcl-")

    def stand_in(name, **members):
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module

    stand_in("bfcl_eval.constants.model_config",
             MODEL_CONFIG_MAPPING={CHECKER_MODEL: types.SimpleNamespace(underscore_to_dot=True)})
    stand_in("bfcl_eval.model_handler.parser.java_parser", parse_java_function_call=None)
    stand_in("bfcl_eval.model_handler.parser.js_parser", parse_javascript_function_call=None)
    from bfcl_eval import utils
    from bfcl_eval.constants.enums import Language, ModelStyle
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.model_handler.utils import convert_to_tool
    return types.SimpleNamespace(**{k: v for k, v in locals().items() if k != "stand_in"})


class Question:
    def __init__(self, bfcl, category, asked, judged, truth):
        self.id = asked["id"]
        self.category = category
        self.messages = asked["question"][0]
        self.tools = bfcl.convert_to_tool(asked["function"], bfcl.GORILLA_TO_OPENAPI, bfcl.ModelStyle.OPENAI_COMPLETIONS)
        self.functions = judged["function"]
        self.truth = truth["ground_truth"]

    def body(self, options):
        body = {"model": "m", "messages": self.messages, "tools": self.tools, "tool_choice": options.tool_choice,
                "temperature": 0, "max_tokens": options.max_tokens}
        if self.category == "parallel":
            body["parallel_tool_calls"] = True
        elif options.tool_choice == "required":
            # A model forced out of its own form may never stop calling; servers differ in what they take an absent field for.
            body["parallel_tool_calls"] = False
        return body


def questions(bfcl, category, seed, count):
    """A seeded sample; as in BFCL, the model reads function documents with a note on their language and the judge those without."""
    asked = bfcl.utils.load_dataset_entry(category)
    judged = bfcl.utils.load_dataset_entry(category, include_language_specific_hint=False)
    truth = {t["id"]: t for t in bfcl.utils.load_ground_truth_entry(category)}
    picks = random.Random(f"{seed}/{category}").sample(range(len(asked)), count)
    return [Question(bfcl, category, asked[i], judged[i], truth[asked[i]["id"]]) for i in picks]


def ask(base, question, options):
    """The server's answer as it came: status and body."""
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(question.body(options)).encode(),
                                     {"content-type": "application/json"})
    started = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=options.timeout) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode(errors="replace")
    try:
        body = json.loads(text)
    except json.JSONDecodeError:
        body = text
    return {"id": question.id, "status": status, "body": body, "seconds": round(time.perf_counter() - started, 3)}


def parse(question, answer):
    """The calls of an answer as (name, arguments text), and why it does not parse, if so."""
    if answer["status"] != 200:
        return [], f"HTTP {answer['status']}: {json.dumps(answer['body'])[:300]}"
    try:
        choice = answer["body"]["choices"][0]
        message, finish = choice["message"], choice["finish_reason"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    except (KeyError, IndexError, TypeError) as error:
        return [], f"not a chat completion: {error!r}"
    declared = {t["function"]["name"] for t in question.tools}
    for name, arguments in calls:
        if name not in declared:
            return calls, f"a call to {name!r}, which is not declared"
        try:
            good = isinstance(json.loads(arguments), dict)
        except (TypeError, ValueError):
            good = False
        if not good:
            return calls, f"the arguments of {name} are not a JSON object: {str(arguments)[:300]}"
    if finish != "length" and (finish == "tool_calls") != bool(calls):
        return calls, f"{len(calls)} calls, but the finish reason is {finish!r}"
    return calls, None


def judge(bfcl, question, answer):
    """BFCL's verdict (its runner's `_evaluate_single_ast_entry` for a model with native function calling) and ours on the form."""
    calls, fault = parse(question, answer)
    message = answer["body"]["choices"][0]["message"] if answer["status"] == 200 and not fault else {}
    content = message.get("content") or ""
    verdict = {"id": question.id, "correct": False, "parses": fault is None, "fault": fault, "seconds": answer["seconds"]}
    if answer["status"] == 200 and isinstance(answer["body"], dict):
        verdict["finish_reason"] = (answer["body"].get("choices") or [{}])[0].get("finish_reason")
        verdict["completion_tokens"] = (answer["body"].get("usage") or {}).get("completion_tokens")
        verdict["prompt_tokens"] = (answer["body"].get("usage") or {}).get("prompt_tokens")
    try:
        decoded = [{name: json.loads(arguments)} for name, arguments in calls]
    except (TypeError, ValueError):
        decoded = None
    if calls:
        verdict["calls"] = calls
    if content:
        verdict["content"] = content
    if not calls:
        left = any(mark in content for mark in ("<tool", "\"arguments\"")) or any(
            f["name"].replace(".", "_") in content for f in question.functions)
        verdict["error_type"] = "call left in the content" if left else "no call"
    elif decoded is None or not bfcl.utils.is_function_calling_format_output(decoded):
        verdict["error_type"] = "ast_decoder:decoder_failed"
    else:
        result = bfcl.ast_checker(question.functions, decoded, question.truth, bfcl.Language.PYTHON, question.category, CHECKER_MODEL)
        verdict["correct"] = result["valid"]
        if not result["valid"]:
            verdict["error_type"] = result["error_type"]
            verdict["error"] = result["error"]
    return verdict


class Answers:
    """The answers of one server on disk, one line each, after a line with what they are answers to and whose.

    `server` names the version that is asked now; None where kept answers are only read.
    """

    def __init__(self, path, settings, server, resume):
        self.path, self.kept = path, {}
        head = {**settings, "server": server}
        if (resume or server is None) and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            kept = json.loads(lines[0]) if lines else {}
            if kept != head and (server is not None or {**kept, "server": None} != head):
                raise SystemExit(f"{path} holds answers to another run: {json.dumps(kept)}; leave out --resume to start anew, or name another --answers")
            head = kept
            # An interruption may have cut the last line.
            for line in (line for line in lines[1:] if line.endswith("\n")):
                answer = json.loads(line)
                self.kept[answer["id"]] = answer
        self.server = head["server"]
        if server is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in [head, *self.kept.values()])

    def add(self, answer):
        self.kept[answer["id"]] = answer
        with open(self.path, "a") as file:
            file.write(json.dumps(answer) + "\n")


def collect(name, start, asked, answers, options):
    """Asks what is not answered yet, the categories in turn, so that an interrupted run has some of each."""
    todo = [q for row in zip(*asked.values()) for q in row if q.id not in answers.kept]
    if not todo:
        return
    server = start()
    try:
        for n, question in enumerate(todo, 1):
            answer = ask(server.base, question, options)
            answers.add(answer)
            print(f"{name}: {n} of {len(todo)}, {question.id}, {answer['seconds']:.1f} s", file=sys.stderr, flush=True)
    finally:
        server.close()


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hearth_version(options):
    if options.url:
        return f"at {options.url}"
    said = subprocess.run([options.hearth, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{said}, sha256 {sha256(options.hearth)[:16]}"


class Running:
    """A server that somebody else started."""

    def __init__(self, base):
        self.base = base.rstrip("/").removesuffix("/v1")

    def close(self):
        pass


def summarise(verdicts):
    return {
        "questions": len(verdicts),
        "correct": sum(v["correct"] for v in verdicts),
        "do_not_parse": sum(not v["parses"] for v in verdicts),
        "cut": sum(v.get("finish_reason") == "length" for v in verdicts),
        "seconds": round(sum(v["seconds"] for v in verdicts), 1),
        "errors": dict(Counter(v.get("error_type") for v in verdicts if not v["correct"]).most_common()),
    }


def table(summaries):
    print(f"{'category':16}{'server':12}{'correct':>9}{'of':>5}{'do not parse':>14}{'cut':>5}{'seconds':>10}")
    for category in next(iter(summaries.values())):
        for name, rows in summaries.items():
            row = rows[category]
            print(f"{category:16}{name:12}{row['correct']:9}{row['questions']:5}{row['do_not_parse']:14}{row['cut']:5}{row['seconds']:10.1f}")


def compare(ours, theirs, category):
    """Points of a hundred that Hearth is ahead."""
    share = lambda row: 100 * row["correct"] / max(row["questions"], 1)
    return round(share(ours[category]) - share(theirs[category]), 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the GGUF file that both serve")
    ours = parser.add_mutually_exclusive_group()
    ours.add_argument("--hearth", help="Hearth's binary")
    ours.add_argument("--url", help="a running Hearth that serves the file under the name m")
    parser.add_argument("--only", choices=["peer", "hearth"], help="ask only this one; the other's kept answers are still shown")
    parser.add_argument("--categories", default=",".join(CATEGORIES))
    parser.add_argument("--count", type=int, default=100, help="questions sampled of each category")
    parser.add_argument("--limit", type=int, help="ask only the first N of each sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tool-choice", choices=["auto", "required"], default="auto",
                        help="required: both servers force a call, which shows the model's choice of values where its habits of form hide it")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one answer")
    parser.add_argument("--answers", type=Path, default=HERE.parent / ".cache" / "function-calling", help="where answers are kept")
    parser.add_argument("--resume", action="store_true", help="keep the answers of earlier runs")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    options = parser.parse_args()
    if options.only != "peer" and not (options.hearth or options.url):
        parser.error("give --hearth BINARY or --url URL, or ask --only peer")

    bfcl = load_bfcl()
    asked = {c: questions(bfcl, c, options.seed, options.count)[:options.limit] for c in options.categories.split(",")}
    settings = {"model": Path(options.model).name, "sha256": sha256(options.model), "seed": options.seed, "tool_choice": options.tool_choice,
                "max_tokens": options.max_tokens, "bfcl_eval": importlib.metadata.version("bfcl-eval")}
    runs = {
        "hearth": (lambda: hearth_version(options),
                   lambda: Running(options.url) if options.url else servers.Hearth(options.hearth, options.model, options.threads)),
        "llama.cpp": (lambda: f"xllamacpp {importlib.metadata.version('xllamacpp')}",
                      lambda: servers.LlamaCpp(options.model, options.threads)),
    }
    left_out = {"peer": "hearth", "hearth": "llama.cpp"}.get(options.only)
    verdicts, versions = {}, {}
    for name, (version, start) in runs.items():
        # The answers of a server that is not asked now are those of an earlier run.
        answers = Answers(options.answers / f"{name}-{options.tool_choice}.jsonl", settings, None if name == left_out else version(), options.resume)
        if name != left_out:
            collect(name, start, asked, answers, options)
        versions[name] = answers.server
        rows = {c: [judge(bfcl, q, answers.kept[q.id]) for q in qs if q.id in answers.kept] for c, qs in asked.items()}
        if all(len(rows[c]) == len(asked[c]) for c in asked):
            verdicts[name] = rows
        elif name == left_out:
            print(f"{name} was not asked all of this; it is left out", file=sys.stderr)

    summaries = {name: {**{c: summarise(v) for c, v in rows.items()}, "all": summarise(sum(rows.values(), []))} for name, rows in verdicts.items()}
    print(f"{settings['model']}, BFCL {settings['bfcl_eval']}, seed {options.seed}, tool_choice {options.tool_choice}, greedy, at most {options.max_tokens} tokens an answer")
    table(summaries)
    passed, ahead = None, None
    if len(summaries) == 2:
        ahead = {c: compare(summaries["hearth"], summaries["llama.cpp"], c) for c in [*asked, "all"]}
        print("Hearth is ahead by " + ", ".join(f"{points:+g} ({c})" for c, points in ahead.items()) + " points of a hundred")
        passed = ahead["all"] >= 0 and min(ahead.values()) >= -ALLOWED_GAP and not summaries["hearth"]["all"]["do_not_parse"]
        print("passed" if passed else "FAILED: wanted is not lower overall, at most 3 points lower in a category, and every answer of Hearth parses")
    for name, rows in verdicts.items():
        for v in (v for row in rows.values() for v in row if not v["parses"]):
            print(f"{name}: {v['id']}: {v['fault']}")
    if options.out:
        commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        options.out.write_text(json.dumps({
            "commit": commit, **settings, "versions": {name: versions[name] for name in verdicts}, "threads": options.threads, "passed": passed, "ahead": ahead,
            "summaries": summaries, "verdicts": verdicts,
        }, indent=1, ensure_ascii=False) + "\n")
    sys.exit(0 if passed is not False else 1)


main()
