// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Headroom, as read from trees that look like /proc and /sys/fs/cgroup.

#include "store/host_memory.hpp"

#include "support/proc_tree.hpp"

using namespace gpu_sleep;
using store::host_headroom;

namespace {

constexpr Bytes k_unlimited = std::numeric_limits<Bytes>::max();

/// A machine with 10 GiB available, and the control groups that a test adds.
class Machine {
public:
    Machine() {
        tree_.write("proc/meminfo", "MemTotal:       67108864 kB\n"
                                    "MemFree:         1048576 kB\n"
                                    "MemAvailable:   10485760 kB\n"
                                    "Buffers:          524288 kB\n");
    }

    /// What /proc/self/cgroup says.
    void join(const std::string& lines) const { tree_.write("proc/self/cgroup", lines); }
    void write(const std::string& name, const std::string& text) const { tree_.write(name, text); }

    void add_group(const std::string& path, const std::string& limit, Bytes usage,
                   const std::string& stat = "") const {
        const auto directory = "cgroup" + path + "/memory.";
        write(directory + "max", limit + "\n");
        write(directory + "current", std::to_string(usage) + "\n");
        write(directory + "stat", stat);
    }
    void add_group_version_1(const std::string& path, Bytes limit, Bytes usage,
                             const std::string& stat = "") const {
        const auto directory = "cgroup/memory" + path + "/memory.";
        write(directory + "limit_in_bytes", std::to_string(limit) + "\n");
        write(directory + "usage_in_bytes", std::to_string(usage) + "\n");
        write(directory + "stat", stat);
    }

    [[nodiscard]] store::Headroom headroom() const { return host_headroom({tree_.proc(), cgroup()}); }
    [[nodiscard]] unsigned pressure() const { return store::memory_pressure({tree_.proc(), cgroup()}); }
    [[nodiscard]] Bytes address_space_left() const {
        return store::address_space_left({tree_.proc(), cgroup()});
    }
    [[nodiscard]] std::filesystem::path cgroup() const { return tree_.proc().parent_path() / "cgroup"; }

private:
    test::ProcTree tree_;
};

std::string gib(Bytes count) {
    return std::to_string(count * k_gib);
}

} // namespace

TEST_CASE("Host memory: without control groups the machine's free memory counts", "[host_memory]") {
    const Machine machine;
    CHECK(machine.headroom().bytes == 10 * k_gib);
    CHECK(machine.headroom().limited_by == "free host memory");
    CHECK(machine.headroom().shared == machine.cgroup().parent_path() / "proc" / "meminfo");
}

TEST_CASE("Host memory: what is missing, or says nothing, does not limit", "[host_memory]") {
    const Machine machine;
    machine.write("proc/meminfo", "MemTotal: 67108864 kB\n");
    CHECK(machine.headroom().bytes == k_unlimited);
    machine.join("garbage\n\n:\n0:\n::\n0::/no/such/group\n");
    CHECK(machine.headroom().bytes == k_unlimited);
    machine.write("cgroup/memory.max", "");
    machine.write("cgroup/memory.current", "many\n");
    CHECK(machine.headroom().bytes == k_unlimited);
    machine.add_group("", gib(1), 0);
    CHECK(machine.headroom().bytes == k_gib);
}

TEST_CASE("Host memory: where limits cannot be read nothing is left", "[host_memory]") {
    // A directory in the place of the file is opened, and not read.
    const auto* const name = GENERATE("proc/meminfo", "proc/self/cgroup", "cgroup/a/memory.current",
                                      "cgroup/a/memory.stat", "cgroup/a/memory.max", "cgroup/a/memory.high");
    const Machine machine;
    machine.join("0::/a\n");
    machine.add_group("/a", "max", k_gib);
    CHECK_FALSE(machine.headroom().is_unknown);
    const auto file = machine.cgroup().parent_path() / name;
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
    CHECK(machine.headroom().bytes == 0);
    CHECK(machine.headroom().is_unknown);
    CHECK(machine.headroom().limited_by == "limits that cannot be read: Is a directory");
}

TEST_CASE("Host memory: a /proc of processes alone leaves what their groups do", "[host_memory]") {
    const Machine machine;
    machine.join("0::/a\n");
    machine.add_group("/a", gib(2), k_gib);
    std::filesystem::remove(machine.cgroup().parent_path() / "proc/meminfo");
    CHECK(machine.headroom().bytes == k_gib);
}

TEST_CASE("Host memory: without /proc nothing is left", "[host_memory]") {
    const test::ProcTree tree;
    const auto headroom = host_headroom({tree.proc(), tree.root()});
    CHECK(headroom.bytes == 0);
    CHECK(headroom.limited_by == "limits that cannot be read: No such file or directory");
}

TEST_CASE("Host memory: the process's own group limits", "[host_memory]") {
    const Machine machine;
    machine.join("0::/user.slice/a.scope\n");
    machine.add_group("/user.slice/a.scope", gib(4), k_gib);
    CHECK(machine.headroom().bytes == 3 * k_gib);
    CHECK(machine.headroom().shared == machine.cgroup() / "user.slice/a.scope/memory.max");
    CHECK(machine.headroom().limited_by ==
          "the memory limit of control group " + (machine.cgroup() / "user.slice/a.scope").string());
}

TEST_CASE("Host memory: every ancestor limits, up to the root of the tree", "[host_memory]") {
    const auto* tightest = GENERATE("", "/a", "/a/b", "/a/b/c");
    const Machine machine;
    machine.join("0::/a/b/c\n");
    for (const auto* group : {"", "/a", "/a/b", "/a/b/c"})
        machine.add_group(group, group == std::string(tightest) ? gib(2) : gib(8), k_gib);
    CHECK(machine.headroom().bytes == k_gib);
    CHECK(machine.headroom().limited_by ==
          "the memory limit of control group " + machine.cgroup().string() + tightest);
}

TEST_CASE("Host memory: what a group has room for is what limits", "[host_memory]") {
    struct Group {
        std::string path, limit;
        Bytes usage;
        std::string stat = "";
    };
    struct Row {
        const char* what;
        std::vector<Group> groups;
        Bytes headroom;
    };
    const auto caches = "anon 1\ninactive_file " + gib(1) + "\nactive_file " + gib(1) +
                        "\nslab_reclaimable " + gib(1) + "\nslab_unreclaimable 7\n";
    const Row rows[] = {
        {"those of others do not",
         {{"/a", "max", 1}, {"/b", gib(1), k_gib}, {"/a/child", gib(1), k_gib}},
         10 * k_gib},
        {"what can be taken back is free", {{"/a", gib(4), 3 * k_gib, caches}}, 3 * k_gib},
        {"more can be than is used", {{"/a", gib(4), k_gib, "inactive_file " + gib(3) + "\n"}}, 4 * k_gib},
        {"more is used than may be", {{"/a", gib(4), 5 * k_gib}}, 0},
        {"version 2 beside version 1", {{"/unified/a", gib(2), k_gib}}, k_gib},
    };
    for (const auto& row : rows) {
        INFO(row.what);
        const Machine machine;
        machine.join("0::/a\n");
        for (const auto& group : row.groups)
            machine.add_group(group.path, group.limit, group.usage, group.stat);
        CHECK(machine.headroom().bytes == row.headroom);
    }
}

TEST_CASE("Host memory: a container that sees the host's group names has its own limit", "[host_memory]") {
    const Machine machine;
    machine.join("4:memory:/docker/0123abcd\n");
    machine.add_group_version_1("", 2 * k_gib, k_gib);
    CHECK(machine.headroom().bytes == k_gib);
}

TEST_CASE("Host memory: the point at which a group is slowed down is a limit too", "[host_memory]") {
    const Machine machine;
    machine.join("0::/a\n");
    machine.add_group("/a", "max", k_gib);
    machine.write("cgroup/a/memory.high", gib(3) + "\n");
    CHECK(machine.headroom().bytes == 2 * k_gib);
    machine.add_group("/a", gib(2), k_gib);
    CHECK(machine.headroom().bytes == k_gib);
    machine.write("cgroup/a/memory.high", "max\n");
    CHECK(machine.headroom().bytes == k_gib);
}

TEST_CASE("Host memory: version 1 groups limit, found by their controller", "[host_memory]") {
    const auto* controllers = GENERATE("memory", "cpu,memory", "memory,hugetlb", "cpu,memory,pids");
    const Machine machine;
    machine.join(std::string("9:name=systemd:/x\n4:") + controllers + ":/a/b\n3:memoryless:/c\n0::/\n");
    machine.add_group_version_1("", 9223372036854771712U, k_gib);
    machine.add_group_version_1("/a", 8 * k_gib, 4 * k_gib,
                                "inactive_file " + gib(9) + "\ntotal_inactive_file " + gib(2) + "\n");
    machine.add_group_version_1("/a/b", 9 * k_gib, k_gib);
    machine.add_group_version_1("/c", k_gib, k_gib);
    CHECK(machine.headroom().bytes == 6 * k_gib);
}

TEST_CASE("Host memory: strange group names are names", "[host_memory]") {
    const auto* name = GENERATE("/a:b", "/a b", "/a (deleted)", "/a/../c");
    const Machine machine;
    machine.join("0::" + std::string(name) + "\n");
    machine.add_group(std::filesystem::path(name).lexically_normal().string(), gib(2), k_gib);
    CHECK(machine.headroom().bytes == k_gib);
}

TEST_CASE("Host memory: a limit on address space leaves what is not taken of it", "[host_memory]") {
    const Machine machine;
    CHECK(machine.address_space_left() == k_unlimited);
    machine.write("proc/self/status", "Name:\tx\nVmPeak:\t 3145728 kB\nVmSize:\t 2097152 kB\n");
    const auto limit = [&](const std::string& soft) {
        machine.write("proc/self/limits",
                      "Limit                     Soft Limit           Hard Limit           Units     \n"
                      "Max address space         " +
                          soft + "           unlimited            bytes     \n");
    };
    limit("unlimited");
    CHECK(machine.address_space_left() == k_unlimited);
    limit("3221225472");
    CHECK(machine.address_space_left() == k_gib);
    limit("1073741824"); // set below what it has
    CHECK(machine.address_space_left() == 0);
}

TEST_CASE("Host memory: this machine has some", "[host_memory]") {
    const auto headroom = host_headroom();
    CHECK(headroom.bytes > 0);
    CHECK(headroom.bytes < k_unlimited);
    CHECK_FALSE(headroom.limited_by.empty());
}

TEST_CASE("Host memory: pressure is the machine's or the group's, whichever is more", "[host_memory]") {
    const Machine machine;
    CHECK(machine.pressure() == 0);
    machine.write("proc/pressure/memory",
                  "some avg10=3.97 avg60=50.00 avg300=0.00 total=1\nfull avg10=90.00\n");
    CHECK(machine.pressure() == 3);
    machine.join("1:cpu:/other\n0::/mine\n");
    machine.write("cgroup/mine/memory.pressure", "some avg10=12.50 avg60=0.00\n");
    CHECK(machine.pressure() == 12);
    machine.write("cgroup/mine/memory.pressure", "some avg10=1.00\n");
    CHECK(machine.pressure() == 3);
    for (const auto* text : {"some avg10=99999999999999999999.0\n", "nonsense\n", ""}) {
        machine.write("proc/pressure/memory", text);
        CHECK(machine.pressure() == 1);
    }
}
