// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The lines of the history, as PROTOCOL.md describes them: the fields of an event, in their order.

#pragma once

#include "model/history.hpp"

namespace gpu_sleep::protocol {

/// The line of an event, with its end. Texts are made printable, and cut.
[[nodiscard]] std::string line_of(const model::Event& event);

/// Reads a line without its end. Returns nothing for text of another form, whoever wrote it.
[[nodiscard]] std::optional<model::Event> parse_event(std::string_view line);

} // namespace gpu_sleep::protocol
