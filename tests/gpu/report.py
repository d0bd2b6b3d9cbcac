"""tests/gpu/report.py - the report of tests/gpu/gpu_check.py: report.txt and report.json, with a row for each part.

A row of report.json has part, what (it is), status and seconds; why, if it failed or did not run; figures; not_run: a list of what of
it did not run; log_ends, of commands that failed.
"""
import json
import threading

STATUSES = ("passed", "in part", "FAILED", "not run")
NOT_BEGUN = "it had not begun"


def write_whole(path, content):
    """Another part may read or write the same file, and this script may be killed meanwhile."""
    part = path.with_name("%s.%d" % (path.name, threading.get_ident()))
    part.write_bytes(content)
    part.replace(path)


def totals_of(rows):
    return "gpu-check: " + ", ".join("%d %s" % (sum(r["status"] == s for r in rows), s.lower()) for s in STATUSES)


def text_of(rows):
    lines = [totals_of(rows), ""]
    for r in rows:
        lines.append("%s: %s (%.1f s) - %s" % (r["part"], r["status"], r["seconds"], r["what"]))
        if "why" in r:
            lines.append("    " + r["why"])
        lines += ["    did not run: " + what for what in r.get("not_run", [])]
        for key, value in (r.get("figures") or {}).items():
            lines.append("    %s: %s" % (key, json.dumps(value) if not isinstance(value, str) else value))
        lines += ["    " + line for text in r.get("log_ends", []) for line in text.splitlines()]
    return "\n".join(lines) + "\n"


class Report:
    """Both files are replaced as a whole whenever a row changes, so they are there if this script is killed."""

    def __init__(self, folder, parts):
        """parts: {name: what it is}, in the order of the report."""
        self.folder, self.lock = folder, threading.Lock()
        self.by_part = {name: {"part": name, "what": what, "status": "not run", "why": NOT_BEGUN, "seconds": 0}
                        for name, what in parts.items()}
        self.write()

    def rows(self):
        return list(self.by_part.values())

    def put(self, name, row):
        """Replace a part's row, but for its name and what it is."""
        with self.lock:
            self.by_part[name] = {**{key: self.by_part[name][key] for key in ("part", "what")}, **row}
            self.write()

    def leave_out_not_begun(self):
        with self.lock:
            self.by_part = {name: row for name, row in self.by_part.items() if row.get("why") != NOT_BEGUN}
            self.write()

    def write(self):
        write_whole(self.folder / "report.json", (json.dumps(self.rows(), indent=1) + "\n").encode())
        write_whole(self.folder / "report.txt", text_of(self.rows()).encode())
