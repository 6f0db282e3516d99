// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Events that processes share: how often one was recorded, and how far that is done, lies in memory that all
// who opened it have.

#pragma once

#include "base/fd.hpp"
#include "support/simulated_driver/stream.hpp"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace gpu_sleep::sim {

class SharedEvent : public Timeline {
public:
    /// Null if the host refuses.
    [[nodiscard]] static std::shared_ptr<SharedEvent> create();
    /// Null if the handle is none, or its process or the event there is gone.
    [[nodiscard]] static std::shared_ptr<SharedEvent> open(const CUipcEventHandle& handle);
    [[nodiscard]] CUipcEventHandle handle() const;
    ~SharedEvent() override;

    /// Returns the number that complete() gets when the stream is there.
    [[nodiscard]] std::uint64_t record();
    void complete(std::uint64_t number);
    /// The last recording, in whichever process.
    [[nodiscard]] std::uint64_t recorded() const { return page_->recorded; }
    /// Also when the process that recorded last has ended.
    [[nodiscard]] bool reached(std::uint64_t number) override;

private:
    struct Page {
        std::atomic<std::uint64_t> recorded, completed;
        std::atomic<int> recorder; ///< a process
    };
    SharedEvent(UniqueFd file, Page* page) : file_(std::move(file)), page_(page) {}
    [[nodiscard]] static std::shared_ptr<SharedEvent> map(UniqueFd file);

    UniqueFd file_;
    Page* page_;
};

} // namespace gpu_sleep::sim
