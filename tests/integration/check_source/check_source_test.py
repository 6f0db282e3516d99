# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Shows that scripts/check-source finds what it looks for: each case is a small tree with one file in it."""

import contextlib
import io
import pathlib
import runpy
import sys
import tempfile
import unittest

CHECK_SOURCE = runpy.run_path(sys.argv.pop(1))
OPENING = "// SPDX-License-Identifier: Apache-2.0\n// Copyright the gpu-sleep authors.\n// A file.\n"


def findings(path, text, others=()):
    """Exit status and output of the check over a tree that holds only this file, and `others`."""
    with tempfile.TemporaryDirectory() as tree, contextlib.redirect_stdout(io.StringIO()) as output:
        for name, content in ((path, text), *others):
            file = pathlib.Path(tree, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        return CHECK_SOURCE["main"]([tree]), output.getvalue()


class CheckSource(unittest.TestCase):
    def assert_clean(self, path, body):
        self.assertEqual(findings(path, OPENING + body), (0, "1 files keep the rules\n"), (path, body))

    def assert_found(self, path, body, expected):
        status, output = findings(path, OPENING + body)
        self.assertEqual((status, f"{path}:4: {expected}" in output), (1, True), (path, body, output))

    def test_missing_opening(self):
        for text in ("", "int x;\n", OPENING.replace("Apache-2.0", "MIT"), OPENING.replace("// A file.", "int x;")):
            with self.subTest(text=text):
                self.assertEqual(findings("src/base/x.cpp", text)[0], 1)

    def test_dependencies(self):
        for path, header in (("src/base/x.hpp", "model/model.hpp"), ("src/model/x.hpp", "driver/api.hpp"),
                             ("src/ledger/x.cpp", "contents/batch.hpp"), ("src/store/x.cpp", "sleep/plan.hpp"),
                             ("src/contents/x.cpp", "ledger/ledger.hpp"), ("src/sleep/x.cpp", "store/host_arena.hpp"),
                             ("src/protocol/x.cpp", "ledger/ledger.hpp"), ("cli/x.cpp", "driver/api.hpp"),
                             ("agent/gate/x.cpp", "program_memory/program_memory.hpp"),
                             ("agent/intercepted/x.cpp", "lifecycle/agent.hpp"), ("agent/server/x.cpp", "driver/api.hpp"),
                             ("agent/hooks/x.cpp", "operations/operation.hpp")):
            self.assert_found(path, f'#include "{header}"\n', "")

    def test_dependencies_that_are_allowed(self):
        for path, header in (("src/model/x.hpp", '"base/units.hpp"'), ("src/sleep/x.cpp", '"contents/save.hpp"'),
                             ("src/store/x.cpp", "<memory>"), ("src/store/x.cpp", '"store/host_arena.hpp"'),
                             ("agent/intercepted/x.cpp", '"gate/gate.hpp"'), ("agent/x.cpp", '"lifecycle/agent.hpp"'),
                             ("src/doctor/x.cpp", '"driver/checkpoint.hpp"'), ("tests/unit/x.cpp", '"sleep/plan.hpp"')):
            self.assert_clean(path, f"#include {header}\n")

    def test_circle_of_components(self):
        header = ("src/base/x.hpp", OPENING)
        for of_y, status in (('#include "base/x.hpp"\n', 1), ("", 0)):
            with self.subTest(of_y=of_y):
                result, output = findings("src/base/x.cpp", OPENING + '#include "base/y.hpp"\n',
                                          [header, ("src/base/y.hpp", OPENING), ("src/base/y.cpp", OPENING + of_y)])
                self.assertEqual((result, "src/base/x -> src/base/y -> src/base/x" in output), (status, bool(status)))

    def test_circle_of_modules_and_needless_permission(self):
        may_use = CHECK_SOURCE["MAY_USE"]
        check = CHECK_SOURCE["check_modules"]
        none = {module: set() for module in (*may_use, "src/attic")}
        self.assertIn("src/model: ARCHITECTURE allows base, which nothing there includes", list(check(none, {}, True)))
        self.assertEqual(list(check(none, {}, False)), [])
        may_use["src/base"].add("model")
        self.assertEqual(list(check(none, {}, False)), ["src/base: needs itself in a circle: src/base -> src/model -> src/base"])
        may_use["src/base"].clear()
        may_use["src/attic"] = set()
        self.assertIn("src/attic: a row in ARCHITECTURE without a folder", list(check(none, {}, True)))
        del may_use["src/attic"]

    def test_cuda_stays_out(self):
        self.assert_found("cli/x.cpp", "#include <cuda.h>\n", "cli may not use CUDA's headers")
        self.assert_clean("src/driver/x.cpp", "#include <cuda.h>\n")

    def test_unknown_module(self):
        self.assertIn("src/attic: a module without a row in ARCHITECTURE", findings("src/attic/x.hpp", OPENING)[1])
        self.assertIn("agent/attic: a module without a row in ARCHITECTURE", findings("agent/attic/x.cpp", OPENING)[1])

    def test_the_driver_is_called_where_it_may_be(self):
        for body in ("int x = api.cuCtxGetCurrent(&y);", 'GPU_SLEEP_DRIVER_TRY(api, cuInit, "x", 0);'):
            self.assert_found("agent/lifecycle/x.cpp", body, "agent/lifecycle calls the driver")
            self.assert_found("src/sleep/x.cpp", body, "src/sleep calls the driver")
            self.assert_clean("agent/intercepted/x.cpp", body)

    def test_standard_headers(self):
        self.assert_found("cli/x.cpp", "std::vector<int> x;\n", "names std::vector without <vector>")
        self.assert_clean("cli/x.cpp", "#include <vector>\nstd::vector<int> x; // no std::map\n")

    def test_own_headers(self):
        header = OPENING + """namespace gpu_sleep::cli {
using Place = int;
struct Table {
    int inside();
};
constexpr int k_columns = 80;
[[nodiscard]] int shortened(int columns);
} // namespace gpu_sleep::cli
"""
        for names, found in (("Place x;", "Place"), ("cli::Table x;", "Table"), ("int x = k_columns;", "k_columns"),
                             ("int f() { return shortened(3); }", "shortened"), ("using namespace gpu_sleep::cli;", "namespace")):
            for includes, status in (("", 1), ('#include "cli/table.hpp"\n', 0), ('#include "../cli/table.hpp"\n', 0)):
                with self.subTest(names=names, includes=includes):
                    result, output = findings("cli/x.cpp", OPENING + includes + names, [("cli/table.hpp", header)])
                    self.assertEqual(result, status)
                    self.assertEqual("cli/x.cpp:4: names " + found in output, bool(status))
        for names in ("struct Table {};", "x.shortened(3);", "Other::Place x;", "auto shortened = 3; shortened(3);", "inside();",
                      "Text shortened(3);", "A() : shortened(3) {}"):
            with self.subTest(names=names):
                self.assertEqual(findings("cli/x.cpp", OPENING + names, [("cli/table.hpp", header)])[0], 0)

    def test_namespace_of_tests(self):
        header = ("tests/support/files.hpp", OPENING + "namespace gpu_sleep::test {\nint content_of(int file);\n}\n")
        include = '#include "support/files.hpp"\n'
        for body, status in (("int f() { return content_of(3); }", 1), ("int f() { return test::content_of(3); }", 0),
                             ("using test::content_of;\nint f() { return content_of(3); }", 0),
                             ("using namespace gpu_sleep::test;\nint f() { return content_of(3); }", 0)):
            with self.subTest(body=body):
                result, output = findings("tests/unit/x.cpp", OPENING + include + body, [header])
                self.assertEqual((result, "5: names content_of without namespace" in output), (status, bool(status)))

    def test_system_headers(self):
        self.assert_found("cli/x.cpp", "int x = O_CLOEXEC;\n", "names O_CLOEXEC without <fcntl.h>")
        self.assert_clean("cli/x.cpp", "#include <fcntl.h>\nint x = O_CLOEXEC;\n")

    def test_one_generation_of_catch(self):
        for body in ("#include <catch2/catch.hpp>", 'CHECK_THAT(x, Catch::Matchers::Contains("y"));', 'SKIP("no");'):
            self.assert_found("tests/unit/x.cpp", body, "")
            self.assert_clean("tests/support/catch.hpp", body)

    def test_manners(self):
        for body in ("void f() { exit(1); }", "void f() { std::abort(); }", "void f() { ::_exit(1); }",
                     'void f() { std::cout << "x"; }', 'void f() { std::printf("x"); }', "auto* f = stdout;",
                     'void f() { setenv("A", "B", 1); }', "void f() { ::sigaction(1, nullptr, nullptr); }",
                     'UniqueFd f(::open("/", 0));', "int f() { return ::accept4(3, nullptr, nullptr, 0); }"):
            self.assert_found("agent/x.cpp", body, "")
            self.assert_found("src/sleep/x.cpp", body, "")

    def test_good_manners(self):
        for body in ("// never exit() here", 'const char* text = "abort(";', "void f() { thread.exit(); }",
                     "void f() { on_exit(); } /* std::cout */", "auto f = opened([&] { return ::socket(1, 2, 0); });",
                     'auto f = Neighbours::open("x");', "int n = 1'000; int exit_code = 2'000;"):
            self.assert_clean("agent/x.cpp", body)

    def test_commands_may_exit(self):
        self.assert_clean("cli/x.cpp", "int main() { std::exit(3); }")

    def test_commands_print_through_one_file(self):
        for body in ('void f() { std::cerr << "x"; }', 'void f() { std::puts("x"); }', 'void f() { fprintf(f, "x"); }'):
            self.assert_found("cli/x.cpp", body, "prints past cli/show/output.cpp")
            self.assert_clean("cli/show/output.cpp", body)


if __name__ == "__main__":
    unittest.main()
