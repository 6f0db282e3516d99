// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a process is called by its command line, by which words it is found, and where it comes from.

#include "base/process.hpp"
#include "control/program_name.hpp"
#include "support/catch.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::control;
using gpu_sleep::kernel_in;

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

TEST_CASE("Program name: a process is found by its program, its script, or both as shown", "[find]") {
    const auto script = program_name({"/usr/bin/python3", "/srv/train.py"});
    for (const auto* const text : {"python3", "train.py", "python3 train.py"}) CHECK(is_called(script, text));
    for (const auto* const text : {"", "python", "train", "/srv/train.py", "rain.py", "python3 train.py "})
        CHECK_FALSE(is_called(script, text));
    const auto module = program_name({"python3", "-m", "vllm.server"});
    for (const auto* const text : {"vllm.server", "python3 -m vllm.server"}) CHECK(is_called(module, text));
    CHECK_FALSE(is_called(program_name({}), ""));
}

TEST_CASE("Origin: a kernel's id stands in its connection file's name", "[find]") {
    CHECK(kernel_in("python3 -m ipykernel_launcher -f /home/ann/my files/runtime/kernel-1f0c-5a.json") ==
          "1f0c-5a");
    CHECK(kernel_in("python3 -m ipykernel_launcher --f=/run/kernel-1f0c-5a.json --debug") == "1f0c-5a");
    using namespace std::string_literals;
    CHECK(kernel_in("python3\0-f\0/run/kernel-1f0c-5a.json\0"s) == "1f0c-5a");
    CHECK(kernel_in("python3\0/run/kernel-1f0c\0x.json\0"s).empty());
    for (const auto* const none :
         {"", "python3 kernel-7.json", "python3 /kernel-7", "python3 /kernel-7 x.json",
          "python3 /kernel-7/x.json", "python3 /kernel-"})
        CHECK(kernel_in(none).empty());
}

TEST_CASE("Origin: the innermost unit or container of a control group", "[find]") {
    const std::string id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct Row {
        std::string groups, unit;
    };
    const auto row = GENERATE_COPY(values<Row>({
        {"", ""},
        {"0::/\n", ""},
        {"no lines", ""},
        {"0::/system.slice/jupyter.service\n", "jupyter.service"},
        {"0::/system.slice/jupyter.service/user-7", "jupyter.service"},
        {"0::/user.slice/user-7.slice/session-3.scope\n", ""},
        {"0::/user.slice/user-7.slice/user@7.service/app.slice/run-r4.scope\n", "run-r4.scope"},
        {"0::/user.slice/user-7.slice/user@7.service/app.slice\n", ""},
        {"0::/init.scope\n", ""},
        {fmt::format("0::/system.slice/docker-{}.scope\n", id), "0123456789ab"},
        {fmt::format("0::/kubepods/burstable/podabc/{}\n", id), "0123456789ab"},
        {fmt::format("0::/docker/{}/init.scope\n", id), "0123456789ab"},
        {"0::/docker/0123456789abcdef\n", ""},
        {"4:memory:/x/a.service\n1:name=systemd:/system.slice/b.service\n0::/\n", "b.service"},
    }));
    INFO(row.groups);
    CHECK(unit_in(row.groups) == row.unit);
}

TEST_CASE("Origin: the pod and the container in it", "[find]") {
    const std::string id(64, 'a');
    const auto* const path =
        GENERATE("0::/kubepods.slice/kubepods-burstable.slice/"
                 "kubepods-burstable-pod0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice/cri-containerd-{}.scope\n",
                 "0::/kubepods/besteffort/pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9/{}/init.scope\n");
    const auto groups = fmt::format(fmt::runtime(path), id);
    CHECK(pod_in(groups) == "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9");
    CHECK(short_container_in(groups) == id.substr(0, 12));
    for (const auto* const none :
         {"", "0::/pod", "0::/system.slice/podman.service\n", "0::/podabc/x.scope\n"}) {
        CHECK(pod_in(none).empty());
        CHECK(short_container_in(none).empty());
    }
}

TEST_CASE("Origin: hostile names of groups are no containers and no pods, and reach no terminal", "[find]") {
    const std::string id(64, 'a'), uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
    for (const auto& none : {"0::/docker/" + id + "a\n", "0::/docker/" + id.substr(1) + "\n",
                             "0::/docker/" + std::string(64, 'A'), "0::/pod../../" + uid,
                             "0::/pod" + uid.substr(1) + "$", "0::/pod$(id)\"\\" + id.substr(8)}) {
        INFO(none);
        CHECK(pod_in(none).empty());
        CHECK(short_container_in(none).empty());
    }
    const Origin hostile{{}, {}, "471\n472", unit_in("0::/x\"\x1b[2J$(id).service\n")};
    CHECK(hostile.unit == "x\"\x1b[2J$(id).service");
    CHECK(to_text(hostile) == "job 471?472, in x\"?[2J$(id).service");
}

TEST_CASE("Origin: all that is known, and what tells most", "[find]") {
    Origin origin{"work/train.ipynb", "1f0c5a2b-7", "471", "jupyter.service"};
    CHECK(to_text(origin) == "notebook work/train.ipynb, kernel 1f0c5a2b-7, job 471, in jupyter.service");
    CHECK(to_word(origin) == "train.ipynb");
    origin.notebook.clear();
    CHECK(to_word(origin) == "kernel 1f0c5a2b");
    origin.kernel.clear();
    CHECK(to_word(origin) == "job 471");
    origin.job.clear();
    CHECK(to_text(origin) == "in jupyter.service");
    CHECK(to_word(origin) == "jupyter.service");
    for (const auto& its :
         {Origin{"a\nb", {}, {}, {}}, Origin{{}, "a\nb", {}, {}}, Origin{{}, {}, "a\nb", {}}})
        CHECK(to_word(its).ends_with("a?b")); // the environment is its process's to write
    CHECK(to_text(Origin{}).empty());
    CHECK(to_word(Origin{}).empty());
}
