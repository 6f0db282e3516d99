// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making and ending contexts, and finding the streams in them.

#pragma once

#include "support/not_copied.hpp"
#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry.hpp"

#include <memory>
#include <vector>

namespace gpu_sleep::sim {

/// The context of `handle`; null if there is none, or it was destroyed.
[[nodiscard]] std::shared_ptr<Context> find_context(Driver& driver, CUcontext handle);

/// The stream that `handle` names in `context`: one of its own, or its default streams. Null if there is
/// none.
[[nodiscard]] std::shared_ptr<Stream> find_stream(Driver& driver, Context& context, CUstream handle);

/// While one lives, the null stream means the calling thread's own default stream to it.
class PerThreadDefault : test::NotCopied {
public:
    PerThreadDefault() noexcept;
    ~PerThreadDefault();
};

/// One more reference to the device's primary context, which is made if there is none; null without memory
/// for it.
[[nodiscard]] std::shared_ptr<Context> retain_primary(Driver& driver, int device);
/// One less; the last destroys the context. Lets go of the lock meanwhile.
CUresult release_primary(Call& call, int device);

/// Takes what one more stream that the program makes adds to the context's memory; false: the device is full.
[[nodiscard]] bool take_room_for_stream(Context& context);
/// Adds a stream to `context`.
[[nodiscard]] std::shared_ptr<Stream> add_stream(Context& context, Stream::Kind kind);

/// Ends `stream`, which no handle names any more, once its work is done.
void retire_stream(Context& context, Stream& stream);

/// The newest work of every stream of `context`, and of its green contexts.
[[nodiscard]] std::vector<Ticket> all_work(const Context& context);

/// Waits for `tickets` without the driver's lock. Afterwards: the error of `context`, if it has one.
CUresult wait_for(Call& call, const Context& context, const std::vector<Ticket>& tickets);

/// Takes `context` out of the tables with all that belongs to it, drops its work, and waits for its threads.
/// Lets go of the lock meanwhile.
void destroy_context(Call& call, const std::shared_ptr<Context>& context);

} // namespace gpu_sleep::sim
