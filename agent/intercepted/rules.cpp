// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides whether memory is intercepted and under which tag, from the process's settings, the rules and the
// scope of the calling thread.

#include "intercepted/rules.hpp"

#include "base/log.hpp"
#include "common/settings.hpp"
#include "common/tag_scope.hpp"
#include "model/allocation_rules.hpp"
#include "model/environment.hpp"
#include "model/model.hpp"

#include <dlfcn.h>
#include <execinfo.h>

namespace gpu_sleep::agent::intercepted {
namespace {

std::string_view read_tag() {
    const auto parse_tag = [](std::string_view text) {
        return model::is_valid_tag(text) ? std::optional(text) : std::nullopt;
    };
    return parsed_setting(model::environment::k_tag, "a tag: 1 to 64 letters, digits, '_', '-', '.' or ':'",
                          parse_tag)
        .value_or(model::k_default_tag);
}

model::AllocationRules read_rules() {
    const auto text = setting(model::environment::k_rules);
    if (text.empty()) return {};
    auto rules = model::AllocationRules::parse(text);
    if (rules) return *std::move(rules);
    log::error("{} is ignored: {}", model::environment::k_rules, rules.error().message);
    return {};
}

struct Settings {
    Bytes least = bytes_setting(model::environment::k_min_size).value_or(0);
    std::string tag{read_tag()};
    model::AllocationRules rules = read_rules();
};

const Settings& settings() {
    static const auto* const read = new Settings;
    return *read;
}

/// The files of the libraries on the way from the program to this call.
std::vector<std::string_view> find_callers() {
    std::vector<std::string_view> files;
    std::array<void*, 64> frames{};
    const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
    for (int i = 0; i < count; ++i) {
        Dl_info info{};
        if (::dladdr(frames[static_cast<std::size_t>(i)], &info) != 0 && info.dli_fname)
            files.emplace_back(info.dli_fname);
    }
    return files;
}

} // namespace

TagChoice::TagChoice() : scope_(current_scope_tag()) {
    if (settings().rules.name_libraries()) callers_ = find_callers();
}

std::optional<std::string> TagChoice::operator()(std::size_t bytes) const {
    const auto& set = settings();
    if (bytes < set.least) return std::nullopt;
    if (set.rules.rules().empty()) return std::string(scope_.empty() ? set.tag : scope_);
    const auto verdict = set.rules.match(bytes, callers_);
    if (!verdict.intercept) return std::nullopt;
    if (!scope_.empty()) return std::string(scope_);
    return std::string(verdict.tag.empty() ? std::string_view(set.tag) : verdict.tag);
}

const char* TagChoice::why_not(std::size_t bytes) {
    return bytes < settings().least ? "it is smaller than --min-size" : "a rule leaves it to the driver";
}

} // namespace gpu_sleep::agent::intercepted
