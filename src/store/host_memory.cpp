// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading limits.

#include "store/host_memory.hpp"

#include "base/files.hpp"

#include <array>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <system_error>

namespace gpu_sleep::store {
namespace {

namespace fs = std::filesystem;

/// The number that `text` begins with, after blanks. "max", which stands for no limit, is none.
std::optional<Bytes> leading_number(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    Bytes value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    return failure == std::errc{} ? std::optional(value) : std::nullopt;
}

/// None of what could not be read.
template <class Use>
void for_each_line(const std::optional<std::string>& text, Use&& use) {
    std::string_view rest = text ? *text : std::string_view();
    while (const auto line = take_line(rest)) use(*line);
}

/// The sum of those of `keys` that a text of lines "key value" has; nothing if it has none of them.
template <class Keys = std::initializer_list<std::string_view>>
std::optional<Bytes> sum_fields(const std::optional<std::string>& text, const Keys& keys) {
    std::optional<Bytes> sum;
    for_each_line(text, [&](std::string_view line) {
        const auto end = std::min(line.find_first_of(" \t"), line.size());
        if (std::find(keys.begin(), keys.end(), line.substr(0, end)) == keys.end()) return;
        if (const auto value = leading_number(line.substr(end))) sum = sum.value_or(0) + *value;
    });
    return sum;
}

/// Where a control group says what it allows and uses.
struct GroupFiles {
    std::array<const char*, 2> limits; ///< the first is there for all who have the group
    const char* usage;
    std::array<std::string_view, 2> reclaimable; ///< of the usage, what the kernel takes back before it kills
};

// Above memory.high nobody is killed, but every allocation is slowed until enough was reclaimed, and pinned
// memory never can be: a sleep would crawl and so would the program after it. It is a limit to us.
constexpr GroupFiles k_version_2{
    {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "slab_reclaimable"}};
constexpr GroupFiles k_version_1{
    {"memory.limit_in_bytes", ""}, "memory.usage_in_bytes", {"total_inactive_file", ""}};

void limit_by(Headroom& headroom, Bytes bytes, std::string what, fs::path shared) {
    if (bytes >= headroom.bytes) return;
    headroom.bytes = bytes;
    headroom.limited_by = std::move(what);
    headroom.shared = std::move(shared);
}

/// The text of `file`; none of one that is missing, or out of this process's reach for good. Where it cannot
/// be read for another reason, nothing is left.
std::string read_limits(Headroom& headroom, const fs::path& file, bool may_be_missing = true) {
    auto text = read_small_file(file);
    const bool is_hidden = !text && (errno == ENOENT || errno == EACCES || errno == EPERM);
    if (text || (is_hidden && may_be_missing)) return std::move(text).value_or("");
    limit_by(headroom, 0, fmt::format("limits that cannot be read: {}", std::strerror(errno)), {});
    headroom.is_unknown = true;
    return "";
}

void limit_by_group(Headroom& headroom, const fs::path& group, const GroupFiles& files) {
    const auto usage = leading_number(read_limits(headroom, group / files.usage));
    if (!usage) return;
    const auto stat = read_limits(headroom, group / "memory.stat");
    const auto used = *usage - std::min(*usage, sum_fields(stat, files.reclaimable).value_or(0));
    for (const std::string_view file : files.limits)
        if (const auto limit = leading_number(file.empty() ? "" : read_limits(headroom, group / file)))
            limit_by(headroom, *limit - std::min(*limit, used),
                     "the memory limit of control group " + group.string(), group / files.limits.front());
}

/// The group and its ancestors up to and including `root`: each of their limits counts. In a container the
/// name may be the host's and lead nowhere; the ancestors that are there still count, `root` being the
/// container's own group.
void limit_by_groups(Headroom& headroom, const fs::path& root, std::string_view name,
                     const GroupFiles& files) {
    auto relative = fs::path(name).relative_path().lexically_normal();
    for (; !relative.empty() && relative != "."; relative = relative.parent_path())
        limit_by_group(headroom, root / relative, files);
    limit_by_group(headroom, root, files);
}

/// A line of /proc/self/cgroup: "0::/name" for version 2, "N:controllers:/name" for version 1.
void limit_by_membership(Headroom& headroom, const fs::path& root, std::string_view line) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const auto name = line.substr(second + 1);
    if (controllers.empty()) {
        limit_by_groups(headroom, root, name, k_version_2);
        limit_by_groups(headroom, root / "unified", name, k_version_2); // where version 1 is mounted as well
    } else if ((',' + std::string(controllers) + ',').find(",memory,") != std::string::npos) {
        limit_by_groups(headroom, root / "memory", name, k_version_1);
    }
}

} // namespace

Headroom host_headroom(const HostMemorySources& sources) {
    Headroom headroom{std::numeric_limits<Bytes>::max(), "nothing"};
    // A /proc of processes alone has the second, and a kernel without control groups the first.
    const auto groups = read_limits(headroom, sources.proc / sources.process / "cgroup");
    const auto machine = read_limits(headroom, sources.proc / "meminfo", !groups.empty());
    if (const auto available = sum_fields(machine, {"MemAvailable:"}))
        limit_by(headroom, *available * k_kib, "free host memory", sources.proc / "meminfo");
    for_each_line(groups,
                  [&](std::string_view line) { limit_by_membership(headroom, sources.cgroup, line); });
    return headroom;
}

unsigned memory_pressure(const HostMemorySources& sources) {
    static constexpr std::string_view k_some = "some avg10=";
    constexpr std::string_view k_own = "0::/";
    const auto read = [](const fs::path& file) {
        const auto text = read_small_file(file).value_or("");
        const bool is_told = std::string_view(text).starts_with(k_some);
        const auto percent = is_told ? leading_number(std::string_view(text).substr(k_some.size())) : 0;
        return static_cast<unsigned>(std::min<Bytes>(percent.value_or(0), 100));
    };
    auto most = read(sources.proc / "pressure" / "memory");
    for_each_line(read_small_file(sources.proc / sources.process / "cgroup"), [&](std::string_view line) {
        if (line.starts_with(k_own))
            most = std::max(most, read(sources.cgroup / line.substr(k_own.size()) / "memory.pressure"));
    });
    return most;
}

Bytes address_space_left(const HostMemorySources& sources) {
    constexpr std::string_view k_limit = "Max address space";
    auto left = std::numeric_limits<Bytes>::max();
    for_each_line(read_small_file(sources.proc / sources.process / "limits"), [&](std::string_view line) {
        if (!line.starts_with(k_limit)) return;
        const auto limit = leading_number(line.substr(k_limit.size()));
        const auto taken =
            sum_fields(read_small_file(sources.proc / sources.process / "status"), {"VmSize:"});
        if (limit && taken) left = *limit - std::min(*limit, *taken * k_kib);
    });
    return left;
}

} // namespace gpu_sleep::store
