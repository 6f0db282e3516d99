// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Building the tree.

#include "support/proc_tree.hpp"

namespace gpu_sleep::test {

namespace fs = std::filesystem;

ProcTree::ProcTree() {
    fs::create_directories(proc());
    fs::create_directories(root() / "tmp");
}

void ProcTree::add(const FakeProcess& process) const {
    const auto pid = std::to_string(process.pid);
    const auto directory = "proc/" + pid;
    const auto uid = std::to_string(process.uid);
    const auto inner = process.inner_pid == 0 ? "" : "\t" + std::to_string(process.inner_pid);
    auto escaped = process.name; // as the kernel has it in this file alone
    for (std::size_t at = 0; (at = escaped.find('\n', at)) != std::string::npos; at += 2)
        escaped.replace(at, 1, "\\n");
    write(directory + "/status", "Name:\t" + escaped + "\nUmask:\t0022\nState:\tS (sleeping)\nPPid:\t" +
                                     std::to_string(process.parent) + "\nUid:\t12345\t" + uid + "\t" + uid +
                                     "\t" + uid + "\nNSpid:\t" + pid + inner + "\nThreads:\t3\n");
    write(directory + "/stat", pid + " (" + process.name +
                                   ") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 " +
                                   std::to_string(process.start_time) + " 20 21\n");
    write(directory + "/cmdline", process.arguments);
    std::error_code exists;
    fs::create_directory_symlink(root(), scratch_.path() / directory / "root", exists);
    const auto thread = scratch_.path() / directory / "task" / pid;
    fs::create_directories(thread);
    fs::create_symlink("/bin/program", thread / "exe", exists);
}

void ProcTree::write(const std::string& name, const std::string& text) const {
    const auto path = scratch_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

fs::path ProcTree::add_agent_directory(const std::string& name) const {
    auto path = root() / "tmp" / name;
    fs::create_directories(path);
    fs::permissions(path, fs::perms::owner_all);
    return path;
}

} // namespace gpu_sleep::test
