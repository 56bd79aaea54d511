"""Outlines and declarations, language by language, against what a reader would list."""

from __future__ import annotations

import os
import random
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.context.outline import outline
from unabridged.agent.context.syntax import declarations

CASES: dict[str, tuple[str, str]] = {
    "a.py": (
        '''\
"""Mod."""
import os
__all__ = ["A", "f"]
X: int = 3
class A(B, metaclass=M):
    """Doc of A.

    more"""
    y = 1
    def m(self, x: int = 3) -> str:
        "m doc"
        def inner(): pass
    @property
    def p(self):
        return 1
if TYPE:
    def g(): ...
@dec(1)
async def f(a,
      b):
    x = 1
''',
        """\
3: __all__ = ["A", "f"]
4: X: int = 3
5: class A(B, metaclass=M)  — Doc of A.
9:   y = 1
10:   def m(self, x: int = 3) -> str  — m doc
14:   @property def p(self)
17: def g()
19: @dec(1) async def f(a, b)
""",
    ),
    "a.ts": (
        """\
/** Doc of Foo.
 * more */
export interface Foo<T> { a: string; m(x: number): void }
export default class Bar extends Foo { private x = 1; constructor(a: string) { super() } async go(): Promise<void> {} }
export const f = async (a: number) => { return a }
const K = { a: 1 }
type U = 'a' | 'b'
enum E { A, B }
namespace N { export function q() {} }
declare function d(x: any): void
export { f, K }
""",
        """\
3: export interface Foo<T>  — Doc of Foo.
3:   a: string
3:   m(x: number): void
4: export default class Bar extends Foo
4:   private x = 1
4:   constructor(a: string)
4:   async go(): Promise<void>
5: export const f = async (a: number) => { return a }
6: const K = { a: 1 }
7: type U = 'a' | 'b'
8: enum E
9: namespace N
9:   export function q()
10: declare function d(x: any): void
11: export { f, K }
""",
    ),
    "a.js": (
        """\
// adds
function add(a, b) { return a + b }
class P { #x = 1; static s() {} get v() { return 1 } }
module.exports = { add }
export { add as plus }
""",
        """\
2: function add(a, b)  — adds
3: class P
3:   #x = 1
3:   static s()
3:   get v()
5: export { add as plus }
""",
    ),
    "a.go": (
        """\
package p
// Foo does.
type Foo struct { A int }
type I interface { M() }
const (
  A = 1
  B = 2
)
var x, y int
// Run it.
func (f *Foo) Run(a int) (string, error) { return "", nil }
func New[T any](x T) *Foo { return nil }
""",
        """\
3: type Foo struct { A int }  — Foo does.
4: type I interface { M() }
6: A = 1
7: B = 2
9: x, y int
11: func (f *Foo) Run(a int) (string, error)  — Run it.
12: func New[T any](x T) *Foo
""",
    ),
    "a.rs": (
        """\
//! crate
/// A point.
#[derive(Debug)]
pub struct P<T> { x: T }
impl<T> P<T> where T: Copy {
    /// new
    pub fn new(x: T) -> Self { P { x } }
}
pub trait Tr { fn go(&self); type O; }
impl Tr for P<i32> { fn go(&self) {} }
mod inner { pub fn deep() {} }
pub const N: usize = 3;
macro_rules! m { () => {} }
""",
        """\
4: pub struct P<T>  — A point.
5: impl<T> P<T> where T: Copy
7:   pub fn new(x: T) -> Self  — new
9: pub trait Tr
9:   fn go(&self)
9:   type O
10: impl Tr for P<i32>
10:   fn go(&self)
11: mod inner
11:   pub fn deep()
12: pub const N: usize = 3
13: macro_rules! m { () => {} }
""",
    ),
    "A.java": (
        """\
package p;
/** Doc. */
public class A extends B implements C {
  private static final int X = 1;
  /** ctor */
  public A(int x) { }
  @Override public String toString() { return ""; }
  enum E { ONE, TWO; void z() {} }
  record R(int a, String b) {}
  interface I { void f(); }
}
""",
        """\
3: public class A extends B implements C  — Doc.
4:   private static final int X = 1
6:   public A(int x)  — ctor
7:   @Override public String toString()
8:   enum E
8:     ONE
8:     TWO
8:     void z()
9:   record R(int a, String b)
10:   interface I
10:     void f()
""",
    ),
    "a.c": (
        """\
#include <x.h>
#define N 3
#define F(x) (x)
/* the s */
struct s { int a; };
typedef struct { int b; } t;
enum e { A, B };
static int *f(int a, char *b) { return 0; }
int g(void);
extern int v;
#ifdef Q
void h(void) {}
#endif
""",
        """\
2: #define N 3
3: #define F(x) (x)
5: struct s  — the s
6: typedef struct { int b; } t
7: enum e
8: static int *f(int a, char *b)
9: int g(void)
10: extern int v
12: void h(void)
""",
    ),
    "a.cpp": (
        """\
namespace ns { namespace inner {
template <typename T> class V : public B<T> { public: V(int); ~V(); int size() const { return 1; } T x; };
struct S { int a; };
}}
// does it
template<class T> T max(T a, T b) { return a; }
int ns::inner::foo(int x) { return x; }
using Z = int;
bool operator==(const S& a, const S& b) { return true; }
extern "C" { int cfun(void); }
""",
        """\
1: namespace ns
1:   namespace inner
2:     template <typename T> class V : public B<T>
2:       V(int)
2:       ~V()
2:       int size() const
2:       T x
3:     struct S
3:       int a
6: template<class T> T max(T a, T b)  — does it
7: int ns::inner::foo(int x)
8: using Z = int
9: bool operator==(const S& a, const S& b)
10: int cfun(void)
""",
    ),
    "r.md": (
        """\
# Title
text
## Sub
""",
        """\
1: # Title
3: ## Sub
""",
    ),
    "r.rst": (
        """\
Title
=====

text

Sub
---
""",
        """\
1: Title
6: Sub
""",
    ),
    "x.rb": (
        """\
module A
  class B
    def c(x)
    end
""",
        """\
1: module A
2:   class B
3:     def c(x)
""",
    ),
    "d.json": (
        """\
{
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
1,
""",
        """\
1: {
2: 1,
3: 1,
4: 1,
5: 1,
6: 1,
7: 1,
8: 1,
… 22 lines in all
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outline(name: str) -> None:
    text, expected = CASES[name]
    assert outline(name, text) == expected


@pytest.mark.parametrize(
    "suffix", ["py", "ts", "tsx", "js", "go", "rs", "java", "c", "cpp", "md", "rb"]
)
@given(text=st.text())
def test_any_text_has_an_outline(suffix: str, text: str) -> None:
    result = outline(f"a.{suffix}", text)
    assert result.endswith("\n")
    for line in result.splitlines():
        assert len(line) < 500


def test_deep_nesting_is_no_stack_overflow() -> None:
    deep = "".join(f"{' ' * depth}class A{depth}:\n" for depth in range(300)) + " " * 300 + "pass\n"
    assert declarations("a.py", deep.encode())
    assert declarations("a.cpp", b"namespace a {" * 5000) is not None
    assert declarations("a.js", b"(" * 100_000) is not None


def test_lines_are_where_they_say() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    files = random.Random(1).sample(sorted(root.glob("*.py")), 40)
    count = 0
    for path in files:
        data = path.read_bytes()
        lines = data.decode("utf-8", "replace").split("\n")
        for one in declarations(path.name, data) or ():
            count += 1
            assert 1 <= one.line <= one.end <= len(lines)
            assert one.name.split(".")[-1].split(",")[0].strip("() ") in lines[one.line - 1]
    assert count > 500


def test_outlines_of_real_code_are_a_fraction_of_it() -> None:
    root = Path(os.__file__).parent
    text = (root / "argparse.py").read_text()
    assert len(outline("argparse.py", text)) < len(text) / 5
