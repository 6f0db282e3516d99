// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a process is called by its command line, and by which words it is found.

#include "control/program_name.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep::control;

TEST_CASE("Program name: the program's file, and what an interpreter runs", "[find]") {
    struct Row {
        std::vector<std::string> arguments;
        std::string shown;
    };
    const auto row = GENERATE(values<Row>({
        {{}, ""},
        {{""}, ""},
        {{"/"}, "/"},
        {{"./llama-server", "-m", "model.gguf"}, "llama-server"},
        {{"/opt/my programs/serve"}, "serve"},
        {{"VLLM::EngineCore"}, "VLLM::EngineCore"},
        {{"sshd: user@pts/0"}, "sshd: user@pts/0"},
        {{"/opt/bin/python serve.py --model /data/llama"}, "python serve.py --model /data/llama"},
        {{"/usr/sbin/serve /data/llama"}, "serve /data/llama"},
        {{"/home/u/My Great Project/.venv/bin/python", "train.py"}, "python train.py"},
        {{"My Great Project/.venv/bin/python", "train.py"}, "python train.py"},
        // Not told apart, see program_of():
        {{"/home/u/My Great Project/.venv/bin/python"}, "My Great Project/.venv/bin/python"},
        {{"/opt/bin/python scripts/serve.py --model /data/llama"}, "llama"},
        {{"/usr/sbin/serve config/a.toml"}, "a.toml"},
        {{"/usr/bin/python3", "/home/user/work/train.py", "--epochs", "3"}, "python3 train.py"},
        {{"/usr/bin/python3.13t", "-u", "train.py"}, "python3.13t train.py"},
        {{"python3", "-W", "ignore", "-Xdev", "-X", "utf8", "train.py"}, "python3 train.py"},
        {{"python3", "-uW", "ignore", "train.py"}, "python3 train.py"},
        {{"python3", "--check-hash-based-pycs=never", "train.py"}, "python3 train.py"},
        {{"python3", "--", "-odd.py"}, "python3 -odd.py"},
        {{"python3", "--"}, "python3"},
        {{"python3", "-m", "vllm.server", "--model", "x"}, "python3 -m vllm.server"},
        {{"python3", "-um", "vllm.server"}, "python3 -m vllm.server"},
        {{"python3", "-mvllm.server"}, "python3 -m vllm.server"},
        {{"python3", "-m"}, "python3"},
        {{"python3", "-W"}, "python3"},
        {{"python3", "-c", "print(1)", "train.py"}, "python3"},
        {{"python3", "-", "train.py"}, "python3"},
        {{"python3", "/srv/program/"}, "python3 program"},
        {{"python3", "/usr/local/bin/vllm", "serve", "llama"}, "python3 vllm"},
        {{"python3"}, "python3"},
        {{"-bash"}, "-bash"},
        {{"bash", "-lc", "exec ./serve"}, "bash"},
        {{"/bin/bash", "-eo", "pipefail", "scripts/serve"}, "bash serve"},
        {{"perl", "-Ilib", "-MList::Util", "serve.pl"}, "perl serve.pl"},
        {{"perl5.36.0", "-lne", "print"}, "perl5.36.0"},
        {{"perl", "-i.pre", "serve.pl"}, "perl serve.pl"},
        {{"bash", "+x", "serve.sh"}, "bash serve.sh"},
        {{"julia", "--threads", "4", "train.jl"}, "julia train.jl"},
        {{"julia", "--project=.", "-t", "4", "train.jl"}, "julia train.jl"},
        {{"node", "-r", "dotenv", "serve.js"}, "node serve.js"},
        {{"pythonic", "train.py"}, "pythonic"},
    }));
    INFO(row.shown);
    CHECK(to_string(program_name(row.arguments)) == row.shown);
}

TEST_CASE("Program name: a process is found by its program, its script, or both as they are shown",
          "[find]") {
    const auto script = program_name({"/usr/bin/python3", "/srv/train.py"});
    for (const auto* const text : {"python3", "train.py", "python3 train.py"}) CHECK(is_called(script, text));
    for (const auto* const text : {"", "python", "train", "/srv/train.py", "rain.py", "python3 train.py "})
        CHECK_FALSE(is_called(script, text));
    const auto module = program_name({"python3", "-m", "vllm.server"});
    for (const auto* const text : {"vllm.server", "python3 -m vllm.server"}) CHECK(is_called(module, text));
    CHECK_FALSE(is_called(program_name({}), ""));
}
