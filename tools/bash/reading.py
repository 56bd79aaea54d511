"""Programs that only read: what they read, and the options with which they still only do that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

from ...agent.effects import Effect, EffectKind
from .folders import Reach
from .languages import awk, jq, sed
from .site import Field, Site
from .syntax import words_of
from .usage import Parsed, Row, base_pattern

_ENVIRONMENT = "the environment may hold keys"


def _program(language: Callable[[str], str | None], options: str) -> Callable[[Parsed], str | None]:
    """A check of the program text: the first operand, or the values of `options`."""

    def check(parsed: Parsed) -> str | None:
        programs = parsed.values(options) or list(parsed.operands[:1])
        for program in programs:
            if program.text is None:
                return "its program cannot be known"
            if reason := language(program.text):
                return reason
        return None

    return check


def _sed_in_place(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """`-i` rewrites the operands; BSD's `-i ''` shifts them by one, so all may be files."""
    if not parsed.has("-i --in-place"):
        return
    suffixes = [value.text or "" for value in parsed.values("-i --in-place")]
    for file in parsed.operands if parsed.has("-e --expression") else parsed.operands[1:]:
        if file.text != "":
            yield from site.write(file)
            for suffix in filter(None, suffixes):
                yield from site.write(replace(file, text=file.text and file.text + suffix))


def _sed_check(parsed: Parsed) -> str | None:
    if any(
        value.text is None or not re.fullmatch(r"[\w.~-]*", value.text)
        for value in parsed.values("-i --in-place")
    ):
        return "a backup name that is not understood"
    programs = parsed.values("-e --expression") or list(parsed.operands[:1])
    if parsed.has("-i --in-place"):
        programs += [second for first, second in pairwise(parsed.operands) if first.text == ""]
    for program in programs:
        if program.text is None:
            return "its program cannot be known"
        if reason := sed(program.text):
            return reason
    return None


def _yq_check(parsed: Parsed) -> str | None:
    """The first operands may be a sub-command and the program, in either order."""
    for operand in parsed.operands:
        if operand.text is None or jq(operand.text):
            return "its program is not understood"
    return None


def _only(pattern: str, reason: str) -> Callable[[Parsed], str | None]:
    """Every operand must match."""

    def check(parsed: Parsed) -> str | None:
        fits = all(o.text is not None and re.match(pattern, o.text) for o in parsed.operands)
        return None if fits else reason

    return check


def _no_option_file(parsed: Parsed) -> str | None:
    """binutils put the words of a file in the place of `@file`, wherever it stands."""
    values = [value for _, value in parsed.options if value is not None]
    hidden = any(
        (w.text or w.head or w.source).startswith("@") for w in (*parsed.operands, *values)
    )
    return "it takes options from a file" if hidden else None


def _needs_none(reason: str) -> Callable[[Parsed], str | None]:
    return lambda parsed: reason if parsed.operands else None


def _secret_environment(parsed: Parsed, site: Site) -> Iterable[Effect]:
    return (Effect(kind=EffectKind.SECRET, detail=_ENVIRONMENT),)


_RG_PROGRAM = "-e -f --regexp --file --files --type-list"
_RG_PLAIN_TYPES = words_of(
    "py js ts rust go java c cpp cs md markdown html css toml ruby php kotlin swift make cmake sql lua"
)


def _rg_tree(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """What ripgrep reads: the operands, or the folder it is in. Globs and types that are asked
    for override its rule to leave out hidden files."""
    folders = parsed.operands[0 if parsed.has(_RG_PROGRAM) else 1 :] or (Field(".", "."),)
    globs = [v.text if v.text is not None else "*" for v in parsed.values("-g --glob --iglob")]
    names = tuple(base_pattern(glob) for glob in globs if not glob.startswith("!"))
    types = [value.text for value in parsed.values("-t --type")]
    hidden = parsed.has("-. --hidden -u --unrestricted --type-add") or bool(names)
    reach = Reach(
        follow=parsed.has("-L --follow"),
        hidden=hidden or any(kind not in _RG_PLAIN_TYPES for kind in types),
        only=names,
    )
    for folder in folders:
        yield from site.look(folder) if parsed.has("--files") else site.tree(folder, reach)


def _ls_check(parsed: Parsed) -> str | None:
    through = parsed.has("-L --dereference") and parsed.has("-R --recursive")
    return "it goes through links" if through else None


_GREP = (
    "-a -b -c -E -F -G -H -h -i -I -L -l -n -o -P -q -s -v -w -x -y -Z -z -U -T "
    "-A: -B: -C: -e: -f:read -m: -# "
    "--after-context: --before-context: --context: --regexp: --file:read --max-count: "
    "--include: --exclude: --exclude-dir: --exclude-from:read --color? --colour? --binary-files: "
    "--count --extended-regexp --fixed-strings --basic-regexp --perl-regexp --ignore-case "
    "--no-ignore-case --invert-match --word-regexp --line-regexp --files-with-matches "
    "--files-without-match --only-matching --quiet --silent --no-messages --with-filename "
    "--no-filename --line-number --byte-offset --text --null --null-data --line-buffered --label: "
    "--initial-tab --version --help -r -R --recursive --dereference-recursive"
)

_RG = (
    "-a -b -c -F -i -I -l -L -n -N -o -p -P -q -s -S -U -u -v -w -x -H -h -0 -. "
    "-A: -B: -C: -e: -f:read -g: -j: -m: -M: -r: -t: -T: -E: -d: "
    "--after-context: --before-context: --context: --regexp: --file:read --glob: --iglob: "
    "--max-count: --max-columns: --max-depth: --maxdepth: --max-filesize: --replace: --type: "
    "--type-not: --type-add: --threads: --sort: --sortr: --color: --colors: --encoding: --engine: "
    "--ignore-file:read --path-separator: --context-separator: --field-match-separator: "
    "--count --count-matches --fixed-strings --ignore-case --case-sensitive --smart-case "
    "--files --files-with-matches --files-without-match --follow --hidden --no-hidden "
    "--no-ignore --no-ignore-vcs --no-ignore-parent --no-ignore-global --no-ignore-dot "
    "--no-filename --with-filename --no-heading --heading --no-line-number --line-number "
    "--no-messages --only-matching --column --json --invert-match --word-regexp --line-regexp "
    "--multiline --multiline-dotall --pcre2 --pretty --quiet --stats --text --trim --vimgrep "
    "--null --null-data --passthru --crlf --one-file-system --type-list --unrestricted --version "
    "--no-config --line-buffered --block-buffered --byte-offset --max-columns-preview --glob-case-insensitive "
    "--no-require-git --binary --sort-files --auto-hybrid-regex --include-zero"
)

_LS = (
    "-1 -a -A -b -B -c -C -d -f -F -g -G -h -H -i -k -l -L -m -n -N -o -p -q -Q -r -R -s -S -t -u -U "
    "-v -x -X -Z -I:look -T:look -w:look -e -O -@ "
    "--all --almost-all --author --escape --block-size: --ignore-backups --color? --directory "
    "--classify? --file-type --format: --full-time --group-directories-first --no-group "
    "--human-readable --si --dereference --dereference-command-line --hide: --hyperlink? --indicator-style: "
    "--inode --ignore: --kibibytes --numeric-uid-gid --literal --hide-control-chars "
    "--show-control-chars --quote-name --quoting-style: --reverse --recursive --size --sort: "
    "--time: --time-style: --tabsize: --width: --context --zero --version --help"
)

ROWS: tuple[Row, ...] = (
    # ---- text of files ---------------------------------------------------------------------
    Row(
        "cat",
        "-A -b -e -E -n -s -t -T -u -v -l --show-all --number-nonblank --show-ends --number "
        "--squeeze-blank --show-tabs --show-nonprinting --version --help",
        "read*",
        inert=True,
        yes=("cat README.md", "cat -n src/a.py src/b.py", "cat", "cat < README.md", "cat -"),
        no=("cat /etc/passwd", "cat .env", "cat ~/.bashrc", "cat ../x", "cat $x"),
    ),
    Row(
        "tac",
        "-b -r -s: --before --regex --separator:",
        "read*",
        yes=("tac README.md",),
        no=("tac /etc/passwd",),
    ),
    Row(
        "head",
        "-n: -c: -q -v -z -# --lines: --bytes: --quiet --silent --verbose --zero-terminated",
        "read*",
        yes=("head -n 20 README.md", "head -20 README.md", "head -c100 src/a.py"),
        no=("head -n 1 /etc/passwd", "head src/a.py -n /etc/passwd"),
    ),
    Row(
        "tail",
        "-n: -c: -q -v -z -f -F -r -# -s: --lines: --bytes: --quiet --silent --verbose "
        "--zero-terminated --follow? --retry --pid: --sleep-interval:",
        "read*",
        yes=("tail -n +5 README.md", "tail -5 README.md"),
        no=("tail -f /var/log/syslog",),
    ),
    Row(
        "wc",
        "-c -l -m -w -L --bytes --chars --lines --max-line-length --words --total:",
        "read*",
        yes=("wc -l src/a.py", "wc"),
        no=("wc --files0-from=list", "wc -l /etc/passwd"),
    ),
    Row(
        "nl",
        "-b: -d: -f: -h: -i: -l: -n: -p -s: -v: -w: --body-numbering: --number-width: "
        "--number-format: --number-separator: --starting-line-number:",
        "read*",
        yes=("nl -ba src/a.py",),
        no=("nl /etc/passwd",),
    ),
    Row("rev", "", "read*", yes=("rev README.md",), no=("rev /etc/passwd",)),
    Row(
        "cut",
        "-b: -c: -d: -f: -n -s -w -z --bytes: --characters: --delimiter: --fields: "
        "--only-delimited --output-delimiter: --complement --zero-terminated",
        "read*",
        yes=("cut -d: -f1 README.md", "cut -c1-80"),
        no=("cut -d: -f1 /etc/passwd",),
    ),
    Row(
        "paste",
        "-d: -s -z --delimiters: --serial --zero-terminated",
        "read*",
        yes=("paste -sd, README.md", "paste README.md src/a.py"),
        no=("paste /etc/passwd",),
    ),
    Row(
        "tr",
        "-c -C -d -s -t -u --complement --delete --squeeze-repeats --truncate-set1",
        "text*",
        yes=("tr a-z A-Z", "tr -d '\\n'"),
        no=("tr --unknown a b",),
    ),
    Row(
        "sort",
        "-b -c -C -d -f -g -h -i -m -M -n -r -R -s -u -V -z -k: -t: -o:write "
        "--ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
        "--human-numeric-sort --ignore-nonprinting --month-sort --numeric-sort --random-sort "
        "--reverse --sort: --version-sort --check? --merge --key: --field-separator: --stable "
        "--unique --zero-terminated --output:write --parallel: --debug",
        "read*",
        yes=("sort README.md", "sort -t: -k2,2n -u README.md", "sort -rn"),
        no=(
            "sort -o out README.md",
            "sort -oout README.md",
            "sort README.md -o out",
            "sort --output=out README.md",
            "sort --outp=out README.md",
            "sort --compress-program=./evil README.md",
            "sort -T /tmp README.md",
            "sort --files0-from=list",
        ),
    ),
    Row(
        "uniq",
        "-c -d -D -i -u -z -f: -s: -w: --count --repeated --all-repeated? --ignore-case --unique "
        "--skip-fields: --skip-chars: --check-chars: --group? --zero-terminated",
        "read write",
        yes=("uniq -c", "uniq README.md"),
        no=("uniq README.md out", "uniq -c README.md out"),
    ),
    Row(
        "comm",
        "-1 -2 -3 -i -z --check-order --nocheck-order --output-delimiter: --total "
        "--zero-terminated",
        "read*",
        yes=("comm -12 README.md src/a.py", "comm <(sort README.md) <(sort src/a.py)"),
        no=("comm README.md /etc/passwd", "comm <(rm x) README.md"),
    ),
    Row(
        "join",
        "-a: -e: -i -j: -o: -t: -v: -1: -2: -z --header --check-order",
        "read*",
        yes=("join README.md src/a.py",),
        no=("join README.md /etc/passwd",),
    ),
    Row(
        "diff",
        "-a -b -B -c -C: -d -e -E -i -l -n -N -q -r -s -t -T -u -U: -w -W: -x: -y -I: -X:read -Z "
        "--text --ignore-space-change --ignore-blank-lines --context? --brief --recursive "
        "--report-identical-files --unified? --ignore-all-space --ignore-case --side-by-side "
        "--width: --exclude: --exclude-from:read --color? --minimal --new-file "
        "--suppress-common-lines --strip-trailing-cr --no-dereference --label: -L: -p "
        "--show-c-function --normal --tabsize: --expand-tabs",
        "tree*",
        follows="*",
        yes=("diff -u README.md src/a.py", "diff -r src docs", "diff <(sort a) <(sort b)"),
        no=("diff README.md /etc/passwd", "diff --from-file=/etc/passwd README.md"),
    ),
    Row(
        "cmp",
        "-b -l -s -i: -n: --print-bytes --ignore-initial: --verbose --bytes: --quiet --silent",
        "read read text text",
        yes=("cmp README.md src/a.py",),
        no=("cmp README.md /etc/passwd",),
    ),
    Row(
        "fold",
        "-b -c -s -w: -# --bytes --spaces --width:",
        "read*",
        yes=("fold -w 80 README.md", "fold -s README.md"),
        no=("fold -s /etc/passwd",),
    ),
    Row(
        "fmt",
        "-c -s -t -u -w: -# --width:",
        "read*",
        yes=("fmt -w 72 README.md",),
        no=("fmt -s /etc/passwd",),
    ),
    Row(
        "expand unexpand",
        "-a -i -t: --all --initial --tabs:",
        "read*",
        yes=("expand -t 4 README.md",),
        no=("expand -i /etc/passwd",),
    ),
    Row(
        "column",
        "-t -x -s: -o: -c: -J -n --table --separator: --output-separator: --fillrows",
        "read*",
        yes=("column -t README.md", "column -t -s,"),
        no=("column -t /etc/passwd",),
    ),
    Row("tsort", "", "read", yes=("tsort README.md",), no=("tsort /etc/passwd",)),
    Row(
        "strings",
        "-a -n: -t: -e: -f -# --all --bytes: --radix: --encoding: --print-file-name",
        "read*",
        check=_no_option_file,
        yes=("strings -n 8 bin/tool",),
        no=(
            "strings /bin/ls",
            "strings @README.md",
            "strings -n 8 -- @x",
            "strings -n @x README.md",
        ),
    ),
    Row(
        "od",
        "-A: -t: -j: -N: -S: -w? -v -x -c -b -o -d -i -l -a -f -s --address-radix: --format: "
        "--read-bytes: --skip-bytes: --width? --output-duplicates",
        "read*",
        yes=("od -c README.md", "od -A x -t x1z README.md"),
        no=("od -s /dev/sda",),
    ),
    Row(
        "hexdump hd",
        "-C -c -b -d -o -x -v -n: -s:",
        "read*",
        yes=("hexdump -C README.md",),
        no=("hexdump -f ../fmt x", "hexdump -C /etc/passwd"),
    ),
    Row(
        "xxd",
        "-a -b -c: -e -E -g: -h -i -l: -o: -p -s: -u -v -C -d -n:",
        "read write",
        yes=("xxd -l 64 README.md",),
        no=("xxd README.md out", "xxd -r hex out"),
    ),
    Row(
        "base64 base32",
        "-d -D -i -w: --decode --ignore-garbage --wrap:",
        "read",
        yes=("base64 README.md", "base64 -d README.md"),
        no=("base64 .env", "base64 -o out README.md"),
    ),
    Row(
        "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum sum",
        "-b -t -z --binary --text --tag --zero",
        "read*",
        yes=("sha256sum README.md", "md5sum src/a.py"),
        no=("sha256sum -c SUMS", "md5sum /etc/passwd"),
    ),
    Row(
        "b2sum cksum shasum",
        "-a: -b -l: --binary --algorithm: --length:",
        "read*",
        yes=("shasum -a 256 README.md", "cksum README.md"),
        no=("shasum -c SUMS", "cksum /etc/passwd"),
    ),
    Row(
        "grep egrep fgrep",
        _GREP,
        "text read*",
        unless="-e -f --regexp --file",
        deep="-r -R --recursive --dereference-recursive",
        follows="-R --dereference-recursive",
        only="--include",
        yes=(
            "grep -n foo src/a.py",
            "grep -rn foo src",
            "grep -e foo -e bar README.md",
            "grep -rn --include='*.py' foo .",
            "grep -A3 foo README.md",
            "grep -c foo",
        ),
        no=(
            "grep foo /etc/passwd",
            "grep -f /etc/passwd README.md",
            "grep -r foo ..",
            "grep -e foo /etc/passwd",
            "grep foo .env",
            "grep --fil=/etc/passwd README.md",
        ),
    ),
    Row(
        "rg",
        _RG,
        "text*",
        also=_rg_tree,
        yes=("rg -n foo src", "rg foo", "rg --files -g '*.py'", "rg -tpy 'def \\w+' src tests"),
        no=(
            "rg --pre ./evil foo",
            "rg --pre=./evil foo src",
            "rg foo /etc",
            "rg -z foo",
            "rg --search-zip foo",
            "rg --hostname-bin=./evil foo",
            "rg -f /etc/passwd src",
            "rg -L root /",
        ),
    ),
    # ---- sed, awk, jq ----------------------------------------------------------------------
    Row(
        "sed",
        "-n -E -r -s -u -z -e: -i? --quiet --silent --expression: --regexp-extended "
        "--separate --unbuffered --null-data --in-place? --sandbox --posix",
        "text read*",
        unless="-e --expression",
        check=_sed_check,
        also=_sed_in_place,
        yes=(
            "sed -n '1,20p' README.md",
            "sed 's/a/b/g' README.md",
            "sed -e 5q -e d README.md",
            "sed -n '/^def /,/^$/p' src/a.py",
            "sed '$!d'",
            "sed 's|a/b|c|;s/x//2'",
        ),
        no=(
            "sed -i 's/a/b/' README.md",
            "sed 'w out' README.md",
            "sed 's/a/b/w out' README.md",
            "sed '1e id' README.md",
            "sed 's/a/id/e' README.md",
            "sed 'r /etc/passwd' README.md",
            "sed -f x.sed README.md",
            "sed -n '/a/w out' README.md",
            "sed --in-place=.bak d README.md",
            "sed '1W out' README.md",
            "sed 'R /etc/passwd' x",
            "sed p /etc/passwd",
            "sed 's/[/]/x/w out/' README.md",
            "sed '1!{p;w out' README.md",
        ),
    ),
    Row(
        "awk gawk mawk nawk",
        "-F: -v:",
        "text read*",
        check=_program(awk, "-"),
        yes=(
            "awk '{print $1}' README.md",
            "awk -F: '$3 > 10 {print $1}' README.md",
            "awk 'NR>=10 && NR<=20' README.md",
            "awk '{s+=$1} END {printf \"%d\\n\", s}'",
        ),
        no=(
            "awk 'BEGIN{system(\"id\")}'",
            "awk '{print > \"out\"}' README.md",
            "awk '{print | \"sh\"}' README.md",
            "awk '{\"id\" | getline x}' README.md",
            "awk -f prog README.md",
            "awk 'BEGIN{while((getline l < \"/etc/passwd\")>0) print l}'",
            "awk 'BEGIN{ARGV[1]=\"/etc/passwd\";ARGC=2}1'",
            "awk -i inplace 1 README.md",
            "awk '@load \"filefuncs\"' README.md",
            "awk '{print>$1}' README.md",
            "awk 1 /etc/passwd",
            "awk '{print ENVIRON[\"KEY\"]}'",
            "awk '{print > 5}' README.md",
        ),
    ),
    Row(
        "jq gojq jaq",
        "-a -c -C -e -j -M -n -r -R -s -S --ascii-output --compact-output "
        "--color-output --exit-status --join-output --monochrome-output --null-input "
        "--raw-output --raw-input --slurp --sort-keys --tab --indent: --stream --seq",
        "text read*",
        check=_program(jq, "-"),
        yes=("jq . package.json", "jq -r '.scripts | keys[]' package.json"),
        no=(
            "jq -n env",
            "jq -n '$ENV.KEY'",
            "jq -f prog.jq package.json",
            "jq . /etc/x.json",
            "jq --rawfile a /etc/passwd -n '$a'",
            "jq -L ../lib 'import \"a\" as a; .' x",
            "jq -n 'include \"m\"; .'",
        ),
    ),
    Row(
        "yq",
        "-r -c -P -o: -p: -M -C -e --output-format: --input-format: --prettyPrint --unwrapScalar",
        "text read*",
        check=_yq_check,
        yes=("yq .a docs/x.yml",),
        no=(
            "yq -i .a=1 docs/x.yml",
            "yq 'load(\"/etc/x\")' docs/x.yml",
            "yq 'env(KEY)' x.yml",
            "yq -s .a x.yml",
            "yq e 'load(\"/etc/x\")' docs/x.yml",
        ),
    ),
    # ---- names, sizes, dates ---------------------------------------------------------------
    Row(
        "ls dir vdir",
        _LS,
        "look*",
        empty=".",
        inert=True,
        check=_ls_check,
        yes=("ls", "ls -la src", "ls *.md", "ls -R src", "ls -lt --color=never"),
        no=("ls /etc", "ls ~", "ls ..", "ls $x", "ls -LR", "ls -RL src"),
    ),
    Row(
        "tree",
        "-a -d -f -i -p -s -h -u -g -D -F -q -N -Q -r -t -c -v -U -n -C -A -S -J -X -x "
        "-L: -P: -I: --noreport --dirsfirst --filesfirst --prune --charset: --filelimit: --du "
        "--gitignore --sort? --inodes --device --timefmt: --matchdirs --ignore-case",
        "look*",
        empty=".",
        yes=("tree -L 2", "tree -a -I node_modules src"),
        no=("tree -o out", "tree -R -H . -L 1 -o x", "tree --fromfile /etc/x", "tree /etc"),
    ),
    Row(
        "stat",
        "-c: -f -L -t -x -s -F -l -n -r --format: --printf: --dereference --terse --file-system",
        "look*",
        yes=("stat -c %s README.md", "stat src"),
        no=("stat /etc/passwd",),
    ),
    Row(
        "file",
        "-b -i -I -k -L -h -n -N -p -r -s -0 -e: -F: -P: --brief --mime --mime-type "
        "--mime-encoding --dereference --no-dereference --extension --keep-going --separator:",
        "look*",
        yes=("file README.md bin/tool",),
        no=("file -C -m x", "file -f /etc/passwd", "file -m ../magic x", "file -z x.gz"),
    ),
    Row(
        "du",
        "-0 -a -b -B: -c -d: -D -h -H -k -l -m -P -s -S -t: -x --all --apparent-size "
        "--block-size: --bytes --total --max-depth: --human-readable --si --summarize "
        "--one-file-system --exclude: --time? --time-style: --threshold: --inodes --count-links",
        "look*",
        empty=".",
        yes=("du -sh src", "du -h --max-depth=1"),
        no=("du -sh /home", "du --files0-from=x"),
    ),
    Row(
        "df",
        "-a -B: -h -H -i -k -l -L -m -P -t: -T -x: --human-readable --inodes --local "
        "--portability --type: --print-type --total --output? --si",
        "look*",
        yes=("df -h .", "df -h"),
        no=("df --sync-it",),
    ),
    Row(
        "basename dirname",
        "-a -s: -z --multiple --suffix: --zero",
        "text*",
        inert=True,
        yes=("basename src/a.py .py", "dirname /usr/bin/x"),
        no=("basename $(rm x)",),
    ),
    Row(
        "realpath readlink",
        "-e -f -m -n -q -s -z -v -L -P -E --canonicalize "
        "--canonicalize-existing --canonicalize-missing --no-newline --quiet --strip "
        "--no-symlinks --relative-to: --relative-base: --zero --logical --physical",
        "look*",
        yes=("realpath src", "readlink -f README.md"),
        no=("realpath /etc/x",),
    ),
    Row("pathchk", "-p -P", "text*", yes=("pathchk a",), no=("pathchk -z a",)),
    # ---- text of their own -----------------------------------------------------------------
    Row(
        "echo",
        "",
        "text*",
        inert=True,
        yes=("echo hi", "echo -n 'a b' \"$HOME\"", "echo *.md", "echo -- --x"),
        no=("echo hi > out", "echo $(rm x)", "echo $SECRET_KEY", "echo x >> ~/.bashrc"),
    ),
    Row(
        "true false : pwd",
        "",
        "text*",
        inert=True,
        yes=("true", ":", "pwd", "pwd -P"),
        no=(": > out", ": $(rm x)", ": ${x:=$(rm y)}"),
    ),
    Row("sleep", "", "text*", yes=("sleep 1",), no=("sleep $(rm x)",)),
    Row(
        "seq",
        "-f: -s: -w -t: --format: --separator: --equal-width -#",
        "text*",
        yes=("seq 1 10", "seq -w 5"),
        no=("seq --unknown 5",),
    ),
    Row("expr", "", "text*", yes=("expr 1 + 2",), no=("expr $x",)),
    Row(
        "exit return break continue",
        "",
        "text*",
        inert=True,
        yes=("exit 1", "exit"),
        no=("exit $(rm x)",),
    ),
    Row(
        "shift wait",
        "",
        "text*",
        check=_only(r"\d+$", "jobs"),
        yes=("wait", "shift"),
        no=("wait -p x",),
    ),
    # ---- the machine -----------------------------------------------------------------------
    Row(
        "date",
        "-u -R -I? -d: -r:look --utc --universal --rfc-email --rfc-3339: --iso-8601? "
        "--date: --reference:look --debug",
        "text*",
        check=_only(r"\+", "it may set the clock"),
        yes=("date", "date -u +%F", "date -d '1 day ago' +%s", "date -Iseconds"),
        no=(
            "date -s 2020-01-01",
            "date 010100002020",
            "date --set=x",
            "date -f /etc/passwd",
            "date -us 12:00",
        ),
    ),
    Row(
        "uname arch nproc whoami uptime tty groups users",
        "-a -s -n -r -v -m -p -i -o -p -s "
        "--all --kernel-name --kernel-release --machine --operating-system --ignore:",
        "text*",
        check=_needs_none("operands"),
        yes=("uname -a", "nproc", "whoami"),
        no=("uname x",),
    ),
    Row(
        "id",
        "-a -g -G -n -r -u -z --group --groups --name --real --user",
        "text*",
        yes=("id -u",),
        no=("id --unknown",),
    ),
    Row(
        "hostname",
        "-a -A -d -f -i -I -s -y --fqdn --short --long --domain",
        "text*",
        check=_needs_none("it may set the name of the machine"),
        yes=("hostname",),
        no=("hostname evil", "hostname -F file", "hostname -b x"),
    ),
    Row(
        "free",
        "-b -k -m -g -h -t -w --human --mega --giga --total",
        "none",
        yes=("free -h",),
        no=("free -s 1 x",),
    ),
    Row(
        "ps",
        "-A -a -d -e -f -F -j -l -u: -p: -o: -C: -t: -U: -w -x -H -L --forest --no-headers --sort:",
        "text*",
        check=_only(r"(aux|ax|a|u|x|axo|auxw+)$", "its format"),
        yes=("ps aux", "ps -ef"),
        no=("ps eww", "ps auxe"),
    ),
    Row("which", "-a -s --all", "text*", yes=("which python3",), no=("which --read-alias x",)),
    Row("type", "-a -f -p -P -t", "text*", yes=("type ls", "type -a python"), no=("type -z x",)),
    Row("locale", "-a -m -k -c", "text*", yes=("locale",), no=("locale --x",)),
    Row(
        "printenv", "-0 --null", "text*", also=_secret_environment, no=("printenv", "printenv KEY")
    ),
    Row(
        "tput",
        "",
        "text*",
        check=_only(r"(cols|lines|colors|bold|sgr0|setaf|\d+)$", "terminal"),
        yes=("tput cols",),
        no=("tput init",),
    ),
)
