// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing the description, and knowing it again.

#include "cli/login/containers.hpp"

#include "cli/login/careful_files.hpp"
#include "cli/show/json.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr const char* k_version = "0.3.0"; // podman 4 reads none that is newer than 0.5.0
constexpr const char* k_kind = "gpu-sleep.io/agent";
constexpr mode_t k_mode = 0644;

/// In the directory of the library, and the same in a container.
constexpr const char* k_libraries[] = {"libgpu-sleep-login.so", "libgpu-sleep-agent.so.0",
                                       "libgpu-sleep-agent.so", "libgpu-sleep-audit.so", "gpu-sleep-outside"};
constexpr const char* k_preload_file = "gpu-sleep.preload";

fs::path file_below(const fs::path& root) {
    return root / "etc/cdi/gpu-sleep.json";
}

void add_mount(OrderedJson& mounts, const fs::path& file, const fs::path& in_container) {
    mounts.push_back({{"hostPath", file.native()},
                      {"containerPath", in_container.native()},
                      {"options", {"ro", "nosuid", "nodev", "bind"}}});
}

Result<std::string> description(const fs::path& commands, const fs::path& libraries) {
    const fs::path prefix(GPU_SLEEP_PREFIX_IN_CONTAINERS);
    auto mounts = OrderedJson::array();
    add_mount(mounts, libraries / k_preload_file, "/etc/ld.so.preload");
    for (const auto* name : k_libraries) add_mount(mounts, libraries / name, prefix / "lib" / name);
    for (const auto* name : {GPU_SLEEP_COMMANDS}) add_mount(mounts, commands / name, prefix / "bin" / name);
    for (const auto& mount : mounts) {
        const auto file = mount["hostPath"].get<std::string>();
        std::error_code failure;
        if (!fs::exists(file, failure))
            return make_error(ErrorCode::io_failed, "{} is missing: install gpu-sleep again", file);
    }
    const OrderedJson device = {{"name", "all"}, {"containerEdits", {{"mounts", mounts}}}};
    const OrderedJson all = {{"cdiVersion", k_version}, {"kind", k_kind}, {"devices", {device}}};
    return all.dump(1) + "\n";
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
    const auto text = GPU_SLEEP_TRY(description(commands, library.parent_path()));
    Paths made;
    GPU_SLEEP_TRY(make_directories(file.parent_path(), made));
    GPU_SLEEP_TRY(write_carefully(file, text, k_mode));
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
