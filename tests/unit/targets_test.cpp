// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whom a word of the command line names: a pid, a parent, a name, of one user or of all.

#include "find_fixture.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::control;
using namespace std::string_literals;
namespace fs = std::filesystem;

TEST_CASE("Targets: a pid, a parent without an agent, a name", "[find]") {
    const AgentTree tree;
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99});
    tree.add({.pid = 20, .parent = 10});
    tree.add({.pid = 10, .parent = 1});
    tree.add({.pid = 30, .parent = 1});
    for (const auto& text : {std::to_string(::getpid()), "20"s, "10"s, "llama"s}) {
        auto finder = finder_of(tree);
        const auto targets = test::need(find_targets(finder, text));
        REQUIRE(targets.reached.size() == 1);
        CHECK(targets.reached.front().process.pid == ::getpid());
        CHECK(targets.unreached.empty());
    }
    auto finder = finder_of(tree);
    CHECK(code_of(find_targets(finder, "30")) == ErrorCode::no_agent);
    CHECK(code_of(find_targets(finder, "31")) == ErrorCode::no_process);
    CHECK(code_of(find_targets(finder, "99999999999999")) == ErrorCode::no_process);
    CHECK(code_of(find_targets(finder, "lama")) == ErrorCode::no_process);
    CHECK(find_all(finder)->reached.size() == 1);
}

TEST_CASE("Targets: a program's or a script's name, where nobody was given it", "[find]") {
    const AgentTree tree;
    tree.add({.pid = ::getpid(), .start_time = 99, .arguments = "/usr/bin/python3\0/srv/train.py\0"s});
    tree.add({.pid = 20, .arguments = "python3\0serve.py\0"s});
    tree.write("proc/20/environ", "SLURM_JOB_ID=471\0JPY_SESSION_NAME=work/a.ipynb\0"s);
    tree.write("proc/20/cgroup", "0::/system.slice/jupyter.service\n");
    tree.add({.pid = 30, .arguments = "bash\0serve.py\0"s});
    tree.add({.pid = 31, .parent = 30, .arguments = "bash\0serve.py\0"s});
    tree.add({.pid = 40, .arguments = "perl\0llama\0"s});
    tree.add({.pid = 50, .arguments = "julia\0"s});
    for (const auto* const text : {"train.py", "python3", "python3 train.py", "llama"}) {
        auto finder = finder_of(tree);
        const auto targets = test::need(find_targets(finder, text));
        REQUIRE(targets.reached.size() == 1);
        CHECK(targets.reached.front().process.pid == ::getpid());
        CHECK(targets.reached.front().process.name == "llama");
    }
    auto finder = finder_of(tree);
    CHECK(code_of(find_targets(finder, "train")) == ErrorCode::no_process);
    CHECK(find_targets(finder, "julia").error().message == find_targets(finder, "50").error().message);
    CHECK(code_of(find_targets(finder, "julia", {.user = ::geteuid() + 1})) == ErrorCode::no_process);
    // Those that have an agent do not stand for the others.
    CHECK(find_process_without_agent(finder, "bash", {})->pid == 30); // and not what it has started
    const auto refused = find_process_without_agent(finder, "serve.py", {});
    CHECK(code_of(refused) == ErrorCode::ambiguous_name);
    CHECK(refused.error().message ==
          "2 processes are called 'serve.py': 20 (python3 serve.py): a.ipynb, 30 (bash serve.py)");
    CHECK(to_text(find_process_without_agent(finder, "20", {})->origin) ==
          "notebook work/a.ipynb, job 471, in jupyter.service");
}

TEST_CASE("Targets: a process that was started under a name and has not used CUDA is found by it", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 20, .arguments = "python3\0train.py\0"s});
    tree.write("proc/20/environ", "GPU_SLEEP_NAME=job\0"s);
    tree.write("proc/20/maps", "7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libgpu-sleep-agent.so\n");
    auto finder = finder_of(tree);
    const auto refused = find_targets(finder, GENERATE("job", "20", "train.py"));
    CHECK(code_of(refused) == ErrorCode::no_agent);
    CHECK(refused.error().message ==
          "the agent in process 20 (job) has not started; it starts with the program's first CUDA call; "
          "without gpu-run, with its first tagged allocation");
}

TEST_CASE("Targets: who mistypes a name, or names a user, is told what may be meant", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 20, .arguments = "python3\0train.py\0"s});
    tree.write("proc/20/environ", "GPU_SLEEP_NAME=llama\0"s);
    tree.add({.pid = 30, .arguments = "python3\0serve.py\0"s}); // has no agent: no good answer
    const auto said = [&](std::string_view name) {
        return find_process_without_agent(finder_of(tree), name, {}).error().message;
    };
    CHECK(said("lama") == "there is no process named 'lama'");
    tree.write("proc/20/task/20/comm", "gpu-sleep-ctl\n");
    CHECK(said("lama") == "there is no process named 'lama': did you mean 'llama'?");
    CHECK(said("trian.py") == "there is no process named 'trian.py': did you mean 'train.py'?");
    CHECK(said("serv.py") == "there is no process named 'serv.py'");
    CHECK(said("root") ==
          "there is no process named 'root', but a user: gpu-ps --user root lists that user's processes");
}

TEST_CASE("Targets: the first process of a namespace stands for nobody, unless a tree is meant", "[find]") {
    const AgentTree tree;
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99});
    tree.add({.pid = 20, .inner_pid = 1});
    auto finder = finder_of(tree);
    const auto none = find_targets(finder, "20");
    CHECK(code_of(none) == ErrorCode::no_agent);
    CHECK_THAT(none.error().message,
               test::mentions("gpu-ps lists") && test::mentions("gpu-sleep --tree")); // by any command
    REQUIRE(find_tree(finder, "20"));
    CHECK(find_tree(finder, "20")->reached.size() == 1);
    CHECK(code_of(find_tree(finder, "21")) == ErrorCode::no_process);
}

TEST_CASE("Targets: a tree is a process and its descendants; a name's are those of all with it", "[find]") {
    const AgentTree tree;
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99});
    tree.add({.pid = 20});
    tree.add({.pid = 30, .parent = ::getpid()});
    tree.write(fmt::format("proc/{}/environ", ::getpid()), "SLURM_JOB_ID=471\0"s);
    auto finder = finder_of(tree);
    for (const auto& text : {std::to_string(::getpid()), "20"s, "llama"s}) {
        const auto found = test::need(find_tree(finder, text));
        REQUIRE(found.reached.size() == 1);
        CHECK(found.reached.front().process.origin.job == "471");
    }
    CHECK(code_of(find_tree(finder, "30")) == ErrorCode::no_agent);
    CHECK(code_of(find_tree(finder, "lama")) == ErrorCode::no_process);
}

TEST_CASE("Targets: a tree of a script is what its launcher started, which uses no CUDA itself", "[find]") {
    const AgentTree tree;
    const auto launched = GENERATE("python3\0train.py\0"s, "python3\0-c\0from multiprocessing\0"s);
    tree.add({.pid = 20, .arguments = "python3\0train.py\0"s});
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99, .arguments = launched});
    auto finder = finder_of(tree);
    {
        const auto found = test::need(find_tree(finder, "train.py"));
        REQUIRE(found.reached.size() == 1);
        CHECK(found.reached.front().process.pid == ::getpid());
    }
    CHECK(find_root(finder, "train.py", {})->pid == 20);
    tree.add({.pid = 30, .arguments = "bash\0sweep.sh\0"s});
    const auto none = find_tree(finder, "sweep.sh");
    CHECK(code_of(none) == ErrorCode::no_agent);
    CHECK(none.error().message == "there is no agent in process 30 (bash sweep.sh), or below it: start it "
                                  "with gpu-run or after gpu-enable");
    tree.add({.pid = 31, .arguments = "bash\0sweep.sh\0"s});
    CHECK(code_of(find_tree(finder, "sweep.sh")) == ErrorCode::ambiguous_name);
}

TEST_CASE("Targets: a member that shows an agent and cannot be asked is not left out of a tree", "[find]") {
    const AgentTree tree;
    tree.add({.pid = 20});
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99});
    tree.add({.pid = 30, .parent = 20});
    fs::remove(tree.proc() / "30/root");
    fs::create_symlink(tree.proc() / "30/root", tree.proc() / "30/root"); // nobody can open it
    auto finder = finder_of(tree);
    CHECK(find_tree(finder, "20")->unreached.empty());
    tree.write("proc/30/task/30/comm", "gpu-sleep-ctl\n");
    const auto found = find_tree(finder, "20");
    REQUIRE(found->unreached.size() == 1);
    CHECK(found->unreached.front().process.pid == 30);
    CHECK(find_all(finder, {})->unreached.empty()); // who goes alone holds up nobody
}

TEST_CASE("Targets: who belongs to a tree or a group and is new there is found", "[find]") {
    const test::ProcTree tree;
    const auto begins_to_use = [&](pid_t pid, const std::string& thread) {
        tree.write(fmt::format("proc/{0}/task/{0}/comm", pid), thread);
        tree.write(fmt::format("proc/{}/environ", pid), "GPU_SLEEP_GROUP=job\0"s);
    };
    tree.add({.pid = 20});
    tree.add({.pid = 30, .parent = 20});
    tree.add({.pid = 40});
    const auto finder = finder_of(tree);
    const std::vector<Process> known{*finder.proc().read(20)};
    const Membership membership = GENERATE(Membership{{20}, "", {}}, Membership{{}, "job", {}});
    begins_to_use(20, "gpu-sleep-ctl\n");
    CHECK_FALSE(find_newcomer(finder, membership, known)->has_value());
    begins_to_use(30, "python3\n"); // and not the GPU
    CHECK_FALSE(find_newcomer(finder, membership, known)->has_value());
    begins_to_use(30, "gpu-sleep-ctl\n");
    REQUIRE(find_newcomer(finder, membership, known)->has_value());
    CHECK((*find_newcomer(finder, membership, known))->pid == 30);
    auto of_another = membership;
    of_another.user = ::geteuid() + 1;
    CHECK_FALSE(find_newcomer(finder, of_another, known)->has_value());
}

TEST_CASE("Targets: those of one user alone are looked for, where one is named", "[find]") {
    const AgentTree tree;
    tree.add({.pid = ::getpid(), .parent = 20, .start_time = 99});
    tree.add({.pid = 20});
    auto finder = finder_of(tree);
    const auto own = ::geteuid();
    for (const auto& text : {std::to_string(::getpid()), "20"s, "llama"s}) {
        CHECK(find_targets(finder, text, {.user = own})->reached.size() == 1);
        CHECK(code_of(find_targets(finder, text, {.user = own + 1})) == ErrorCode::no_process);
    }
    CHECK(find_all(finder, own)->reached.size() == 1);
    CHECK(find_all(finder, own + 1)->reached.empty());
}

TEST_CASE("Targets: where a process does not say its name, its environment does, or nothing", "[find]") {
    constexpr Milliseconds k_short{50};
    constexpr Milliseconds k_answered{30'000}; // as long as a busy machine may need
    const OwnTree tree;
    const auto environment = "proc/" + std::to_string(::getpid()) + "/environ";
    std::function<void()> ends; // what becomes of the process when it is asked; nothing, and it is silent
    const auto socket = tree.add_agent_directory(k_directory) / agent_socket_name(::getpid(), 99);
    const test::FakeAgent agent(socket, [&](const protocol::Request&, test::FakeConnection& connection) {
        if (ends) ends();
        if (!ends) connection.wait_for_close();
    });
    auto finder = finder_of(tree);
    const auto thread = "proc/" + std::to_string(::getpid()) + "/task/" + std::to_string(::getpid());
    SECTION("it was started under the name") {
        tree.write(thread + "/comm", "gpu-sleep-ctl\n");
        tree.write(environment, "GPU_SLEEP_NAMES=no\0GPU_SLEEP_NAME=llama\0HOME=/root\0"s);
        const auto targets = test::need(find_targets(finder, "llama", {.name_timeout = k_short}));
        CHECK(targets.unreached.empty());
        REQUIRE(targets.reached.size() == 1);
        CHECK(targets.reached.front().process.pid == ::getpid());
    }
    SECTION("it may have given itself the name") {
        const auto text = GENERATE(""s, "GPU_SLEEP_NAME=lama\0"s, "GPU_SLEEP_NAME=llama\0"s);
        tree.write(environment, text);
        tree.write(thread + "/comm", "gpu-sleep-ctl+\n");
        const auto targets = test::need(find_targets(finder, "llama", {.name_timeout = k_short}));
        CHECK(targets.reached.empty());
        REQUIRE(targets.unreached.size() == 1);
        CHECK(targets.unreached.front().process.pid == ::getpid());
        CHECK(exit_status_of(targets.unreached.front()) == exit_status::timed_out);
        CHECK_THAT(std::get<Error>(targets.unreached.front().answer).message, test::mentions("'llama'"));
    }
    SECTION("it has another name, or none") {
        const auto text = GENERATE(""s, "GPU_SLEEP_NAME=lama\0"s);
        tree.write(environment, text);
        tree.write(thread + "/comm", "gpu-sleep-ctl\n");
        CHECK(code_of(find_targets(finder, "llama", {.name_timeout = k_short})) == ErrorCode::no_process);
    }
    SECTION("it is gone by the time that it answers") {
        const auto directory = tree.proc() / std::to_string(::getpid());
        const std::array<std::function<void()>, 4> ways{
            [&] { fs::remove(directory / "stat"); },
            [&] { tree.add({.pid = ::getpid(), .start_time = 100}); }, // another process has its pid
            [&] { fs::remove(directory / "task" / std::to_string(::getpid()) / "exe"); }, // about to end
            [&] { fs::remove(socket); },                                                  // another program
        };
        ends = ways.at(GENERATE(0U, 1U, 2U, 3U));
        CHECK(code_of(find_targets(finder, "llama", {.name_timeout = k_answered})) == ErrorCode::no_process);
    }
    SECTION("it only lost the connection") {
        ends = [] {};
        const auto targets = test::need(find_targets(finder, "llama", {.name_timeout = k_answered}));
        REQUIRE(targets.unreached.size() == 1);
        CHECK(std::get<Error>(targets.unreached.front().answer).code == ErrorCode::connection_lost);
    }
}
