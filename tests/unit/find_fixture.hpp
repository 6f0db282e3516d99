// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding processes and their agents in a tree that looks like /proc. The agents are threads of this process,
// so it is this process's pid that the kernel names as their peer.

#pragma once

#include "control/find.hpp"
#include "control/targets.hpp"
#include "support/fake_agent.hpp"
#include "support/proc_tree.hpp"
#include "support/sample_reports.hpp"

namespace gpu_sleep::control {

/// The name says which user its own namespace sees; it need not be ours.
inline const std::string k_directory = "gpu-sleep-77";

inline void answer_status(const protocol::Request&, test::FakeConnection& connection) {
    connection.send(test::sample_status());
}

[[nodiscard]] inline Finder finder_of(const test::ProcTree& tree) {
    return Finder(ProcFs(tree.proc()), tree.root());
}

/// With this process, which started at 99.
struct OwnTree : test::ProcTree {
    OwnTree() { add({.pid = ::getpid(), .start_time = 99}); }
};

/// To the agent of a process.
[[nodiscard]] inline auto connect(const test::ProcTree& tree, pid_t pid = ::getpid()) {
    auto finder = finder_of(tree);
    return finder.connect(*finder.proc().read(pid));
}

/// The agent of this process, which started at 99, with the pid that its own namespace has for it.
[[nodiscard]] inline test::FakeAgent add_agent(const test::ProcTree& tree, pid_t pid = ::getpid()) {
    return {tree.add_agent_directory(k_directory) / agent_socket_name(pid, 99), answer_status};
}

/// In which this process is to have an agent.
struct AgentTree : test::ProcTree {
    test::FakeAgent agent = add_agent(*this);
};

template <class Value>
[[nodiscard]] ErrorCode code_of(const Result<Value>& result) {
    REQUIRE_FALSE(result);
    return result.error().code;
}

} // namespace gpu_sleep::control
