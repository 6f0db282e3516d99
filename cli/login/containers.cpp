// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing the description, and knowing it again.

#include "cli/login/containers.hpp"

#include "cli/login/careful_files.hpp"
#include "cli/preload.hpp"
#include "cli/show/json.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr const char* k_version = "0.3.0"; // podman 4 reads none that is newer than 0.5.0
constexpr const char* k_kind = "gpu-sleep.io/agent";

/// In the directory of the library, and the same in a container.
constexpr const char* k_libraries[] = {"libgpu-sleep-agent.so", "libgpu-sleep-login.so",
                                       "libgpu-sleep-audit.so", "gpu-sleep-outside"};
constexpr const char* k_preload_file = "gpu-sleep.preload";

fs::path file_below(const fs::path& root) {
    return root / "etc/cdi/gpu-sleep.json";
}

/// What the installation lacks, such as a command that was not built, containers lack as well.
void add_mount(OrderedJson& mounts, const fs::path& file, const fs::path& in_container) {
    if (std::error_code failure; !fs::exists(file, failure)) return;
    mounts.push_back({{"hostPath", file.native()},
                      {"containerPath", in_container.native()},
                      {"options", {"ro", "nosuid", "nodev", "bind"}}});
}

std::string description(const fs::path& commands, const fs::path& libraries) {
    const fs::path prefix(GPU_SLEEP_PREFIX_IN_CONTAINERS);
    auto mounts = OrderedJson::array();
    add_mount(mounts, libraries / k_preload_file, "/etc/ld.so.preload");
    for (const auto* name : k_libraries) add_mount(mounts, libraries / name, prefix / "lib" / name);
    for (const auto* name : {GPU_SLEEP_COMMANDS}) add_mount(mounts, commands / name, prefix / "bin" / name);
    const OrderedJson device = {{"name", "all"}, {"containerEdits", {{"mounts", mounts}}}};
    return OrderedJson({{"cdiVersion", k_version}, {"kind", k_kind}, {"devices", {device}}}).dump(1) + "\n";
}

bool is_ours(const std::string& text) {
    const auto json = OrderedJson::parse(text, nullptr, false);
    return json.is_object() && json.value("kind", OrderedJson()) == k_kind;
}

/// The text of the description, or nothing where there is none. Errors: invalid_argument: it is not ours.
Result<std::optional<std::string>> read_description(const fs::path& file) {
    auto text = read_carefully(file);
    if (text && *text && !is_ours(**text))
        return make_error(ErrorCode::invalid_argument, "{} already exists, and gpu-sleep did not write it",
                          file.native());
    return text;
}

} // namespace

Result<Paths> enable_containers(const fs::path& root, const fs::path& commands, const fs::path& library) {
    const auto file = file_below(root);
    GPU_SLEEP_TRY(read_description(file));
    // The loader of a program that may not read it says nothing.
    if (root == "/") GPU_SLEEP_TRY(check_open_to_all(library.parent_path() / k_preload_file));
    Paths made;
    GPU_SLEEP_TRY(make_directories(file.parent_path(), Visitors::all, made));
    GPU_SLEEP_TRY(write_carefully(file, description(commands, library.parent_path()),
                                  S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH));
    return Paths{file};
}

Result<void> disable_containers(const fs::path& root) {
    const auto file = file_below(root);
    if (!GPU_SLEEP_TRY(read_description(file))) return {};
    GPU_SLEEP_TRY(remove_carefully(file));
    remove_if_empty(file.parent_path());
    return {};
}

Result<Paths> container_files(const fs::path& root) {
    const auto text = GPU_SLEEP_TRY(read_carefully(file_below(root)));
    return text && is_ours(*text) ? Paths{file_below(root)} : Paths();
}

} // namespace gpu_sleep::cli
