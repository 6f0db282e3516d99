// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From words to sources of policies.

#include "cli/policy_options.hpp"

#include "cli/output.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

namespace gpu_sleep::cli {

namespace policy = control::policy;

usage::Group policy_rows(TypedPolicy& typed) {
    return {"When processes sleep",
            {usage::brief({"--idle", usage::list("DURATION", typed.idle, '\0'),
                           "Put to sleep processes without GPU work for this long"}),
             {"--config", usage::path("FILE", typed.config),
              "The administrator's configuration, instead of /etc/gpu-sleep.toml"},
             usage::old({"--default-idle", usage::duration(typed.otherwise), {}}),
             usage::old({"--host-budget", usage::size(typed.host_budget), {}})}};
}

std::string read_policy(const TypedPolicy& typed, policy::Sources& sources) {
    std::vector<policy::Rung> rungs;
    for (const auto& text : typed.idle) {
        const auto rung = policy::parse_rung(text);
        if (!rung) return "--idle: " + rung.error().message;
        rungs.push_back(*rung);
        if (const auto warning = unit_warning(text); !warning.empty())
            print_error(fmt::format("gpu-reclaim: --idle: {}\n", warning));
    }
    auto ladder = make_ladder(std::move(rungs));
    if (!ladder) return "--idle: " + ladder.error().message;
    if (!ladder->empty()) sources.ladder = *std::move(ladder);
    sources.host_budget = typed.host_budget;
    const bool is_typed = sources.ladder || sources.host_budget;
    if (is_typed && !typed.config.empty()) return "--config has no effect with --idle or --host-budget";
    if (is_typed && typed.otherwise) return "--default-idle has no effect with --idle or --host-budget";
    if (!typed.config.empty()) sources.config = typed.config;
    if (typed.otherwise) sources.otherwise = {{*typed.otherwise, policy::Depth::host}};
    return {};
}

std::string read_rest(const model::SleepRequest& request, const TypedStores& stores,
                      policy::Sources& sources) {
    if (!request.tags.empty()) return "--tags is only for --idle DURATION";
    if (request.level != model::Level::keep) return "--level is for --idle DURATION and --need";
    if (!stores.stores.empty()) return "--store is only for --idle DURATION";
    if (stores.directory.empty()) return {};
    if (!sources.ladder && !sources.host_budget)
        return "--dir is for --idle and --need; set directory in the configuration";
    std::error_code failure;
    sources.directory = std::filesystem::absolute(stores.directory, failure).lexically_normal();
    if (!failure) return {};
    return fmt::format("the directory '{}' is relative to a working directory that is gone",
                       stores.directory);
}

} // namespace gpu_sleep::cli
