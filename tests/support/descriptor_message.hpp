// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A message that takes a descriptor from process to process.

#pragma once

#include "base/fd.hpp"
#include "support/not_copied.hpp"

#include <sys/socket.h>

#include <array>
#include <cstring>

namespace gpu_sleep::test {

/// One byte, and room for the one descriptor that goes along with it. Source: unix(7), SCM_RIGHTS.
struct DescriptorMessage : NotCopied {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    msghdr header{nullptr, 0, &part, 1, room.data(), room.size(), 0};

    /// For one that is to be received.
    DescriptorMessage() = default;
    explicit DescriptorMessage(int descriptor) {
        auto* const control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof descriptor);
        std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    }

    /// The descriptor that came; nothing if none did.
    [[nodiscard]] UniqueFd received() {
        const auto* const control = CMSG_FIRSTHDR(&header);
        int descriptor = -1;
        if (control && control->cmsg_type == SCM_RIGHTS)
            std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
        return UniqueFd(descriptor);
    }
};

} // namespace gpu_sleep::test
