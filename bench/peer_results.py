"""The results file of bench/peers.py: rows that are put in as they come, so that an aborted run keeps what it has.

A row has its part, model and name, which tell it from others; the single runs, their medians and the ratio; and the commit, threads, time and probes of the
run that it is of. A later run replaces the rows that it measures and keeps the rest; an unfinished one replaces no row that has more runs.
"""
import datetime
import json
import os
import statistics

# Units of which more is better; of all others less is.
RATES = ("tok/s", "%")


class Results:
    def __init__(self, path, stamp):
        """`stamp` is what every row of this run is marked with. Without a path nothing is saved."""
        self.path, self.stamp = path, stamp
        self.rows = json.loads(path.read_text())["rows"] if path and path.exists() else []

    def put(self, part, model, row, unit, pairs, done, names=("hearth", "llama.cpp"), compared=True, **more):
        """Saves a row, and returns it. `pairs` are the runs so far, a value of each name; `done` says that no more will come. `more` goes into the row as it is.

        `times_better` is the ratio of the medians, `ratio` the median of the pairs' own; rows with a zero, or that are not to be compared, have neither.
        """
        medians = [statistics.median(pair[i] for pair in pairs) for i in (0, 1)]
        this = {"part": part, "model": model, "row": row, "unit": unit, **dict(zip(names, medians))}
        if compared and all(value > 0 for pair in pairs for value in pair):
            better = (lambda a, b: a / b) if unit in RATES else (lambda a, b: b / a)
            this |= {"times_better": better(*medians), "ratio": statistics.median(better(*pair) for pair in pairs)}
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        this |= {**more, **self.stamp, "time": now, "runs": len(pairs), "pairs": pairs}
        same = [i for i, old in enumerate(self.rows) if all(old[key] == this[key] for key in ("part", "model", "row"))]
        if not same:
            self.rows.append(this)
        elif done or self.rows[same[0]]["runs"] <= this["runs"]:
            self.rows[same[0]] = this
        self.save()
        return this

    def save(self):
        if not self.path:
            return
        # Never half a file, whenever the run is ended.
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps({"rows": self.rows}, indent=1) + "\n")
        os.replace(part, self.path)


def line(row):
    """A row of the table."""
    a, b = (row[name] for name in (("on", "off") if "on" in row else ("hearth", "llama.cpp")))
    ratio = f"{row['times_better']:.2f}x" if "times_better" in row else "-"
    if row.get("at_least"):
        ratio = f">= {ratio}"
    text = f"{row['model']:36} {row['row']:34} {a:9.2f} {b:9.2f} {row['unit']:6} {ratio:>9}  {row.get('flags', '')}".rstrip()
    return f"{text}  [{row['note']}]" if row.get("note") else text
