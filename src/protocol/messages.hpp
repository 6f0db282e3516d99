// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The messages between command and agent, as frames and back. The format is written down in PROTOCOL.md
// beside this.

#pragma once

#include "base/result.hpp"
#include "model/report.hpp"
#include "model/request.hpp"
#include "model/share.hpp"
#include "protocol/frame.hpp"

#include <cstddef>
#include <variant>
#include <vector>

namespace gpu_sleep::protocol {

/// What a command sends: a request, and Directives while a joint one runs. Those that a field tells come
/// before the one that has their type number without it.
using Request =
    std::variant<model::StatusRequest, model::ReleaseRequest, model::LiveRequest, model::CallRequest,
                 model::IdleSleepRequest, model::SleepRequest, model::WakeRequest, model::ShareRequest,
                 model::InhibitRequest, model::Directive>;
/// What an agent answers: any number of Progress, then one Report, Failure or Shared.
using Reply = std::variant<model::Progress, model::Report, model::Failure, model::Shared>;

/// A whole frame, header included. A message that would be too long is refused: invalid_argument.
[[nodiscard]] Result<std::vector<std::byte>> encode(const Request& request);
[[nodiscard]] Result<std::vector<std::byte>> encode(const Reply& reply);

/// Errors: protocol_mismatch (a type, a value, or a field that must be known is not; or a payload that is
/// cut, too long, or out of range).
[[nodiscard]] Result<Request> decode_request(const FrameReader::Frame& frame);
[[nodiscard]] Result<Reply> decode_reply(const FrameReader::Frame& frame);

} // namespace gpu_sleep::protocol
