#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links in Markdown files: every relative target exists, and so does its heading. So do files named in `code`, and documents named in comments. Each
folder has a README.

Usage: links.py ROOT. Addresses outside the tree are not followed.
"""
import glob
import os
import re
import sys

SKIP = {".git", "subprojects"}
TOP = ["fabric", "queues", "bootstrap", "kernels", "tools", "tests", "bench", "docs"]


def braces(name):
    """a/{b,c} is a/b and a/c."""
    found = re.search(r"\{([^}]*)\}", name)
    return [n for part in found[1].split(",") for n in braces(name[:found.start()] + part + name[found.end():])] if found else [name]


def slug(title):
    """The anchor that a forge makes of a heading."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```", "", text))


def anchors(path):
    seen = {}
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"(?ms)^```.*?^```", "", f.read())
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for title in re.findall(r"(?m)^#+ +(.*?) *$", text):
        name = slug(title)
        found.add(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return found


def files(root):
    """Every regular file of the tree, without build directories."""
    for folder, names, here in os.walk(root):
        names[:] = [n for n in names if n not in SKIP and not n.startswith("build-") and not os.path.exists(os.path.join(folder, n, "build.ninja"))
                    and not os.path.exists(os.path.join(folder, n, ".quickstart"))]
        for name in here:
            path = os.path.join(folder, name)
            if os.path.isfile(path):  # not a pipe, which nobody writes to
                yield path


def check_page(path, root):
    wrong = []
    with open(path, encoding="utf-8") as f:
        whole = f.read()
    for name in set(re.findall(r"`((?:" + "|".join(TOP) + r")/[\w./*{},-]*?)`", re.sub(r"(?ms)^```.*?^```", "", whole))):
        for one in braces(name):
            near = [os.path.join(folder, one + end) for folder in (root, os.path.dirname(path)) for end in ("", ".c")]  # a program by its source
            if "NAME" not in one and os.path.basename(path) != "CHANGELOG.md" and not any(glob.glob(name) for name in near):
                wrong.append(f"{os.path.relpath(path, root)}: `{one}`: no such file")
    text = without_code(whole)
    links = re.findall(r"\]\(<?([^)\s>]+)>?\)", text) + re.findall(r'<(?:img|source) [^>]*src(?:set)?="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        where = os.path.relpath(path, root)
        if not os.path.exists(target):
            wrong.append(f"{where}: {link}: no such file")
        elif anchor and target.endswith(".md") and anchor not in anchors(target):
            wrong.append(f"{where}: {link}: no such heading")
    return wrong, len(links)


def folders(root):
    """Folders of sources that a visitor opens; those below tests/ mirror the tree or hold data."""
    for top in TOP:
        yield top
        for folder in "fabric", "fabric/nic", "kernels", "tools", "tests":
            if top == folder.split("/", maxsplit=1)[0]:
                yield from (f"{folder}/{name}" for name in sorted(os.listdir(os.path.join(root, folder)))
                            if os.path.isdir(os.path.join(root, folder, name)) and not name.startswith(("_", ".")))


def main(root):
    wrong = [f"{folder}: no README.md" for folder in folders(root) if not os.path.exists(os.path.join(root, folder, "README.md"))]
    links, pages = 0, 0
    for path in files(root):
        if path.endswith(".md"):
            found, number = check_page(path, root)
            wrong, links, pages = wrong + found, links + number, pages + 1
        elif re.search(r"\.(c|h|cuh|cu|py|sh|bt|in)$|/meson\.build$|/quickstart$", path) and "/seeds/" not in path:
            with open(path, encoding="utf-8", errors="replace") as f:
                for name in set(re.findall(r"(?<![\w./])(?:docs|bench|tests|kernels|queues)/[\w./-]*\.md\b", f.read())):
                    if not os.path.exists(os.path.join(root, name)):
                        wrong.append(f"{os.path.relpath(path, root)}: {name}: no such file")
    print("\n".join(wrong) if wrong else f"{pages} pages, {links} links")
    return 1 if wrong or not links else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
