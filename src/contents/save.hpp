// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping ranges: drafted from a plan, then estimated, or carried out and admitted.

#pragma once

#include "contents/contents.hpp"

#include <map>
#include <string>
#include <vector>

namespace gpu_sleep::contents {

/// What one sleep keeps, on all devices. Until admit() nothing is kept: all is given back with it. It must
/// outlive the sessions that were given to take(). Not thread-safe, but for take() on different devices.
class Save {
public:
    /// `contents` outlives it. `devices`: how many share Options::staging.
    Save(Contents& contents, SaveOptions options, std::size_t devices);

    /// Adds what to keep of a range that begins at `address`: `spans` of it, sorted and disjoint, none empty.
    [[nodiscard]] Number add(const Label& label, model::Store store, driver::DeviceAddress address,
                             std::vector<Span> spans);
    /// What `store` must take at most. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs(model::Store store) const;
    /// Adds to `notes` what each store must take, and whether it can. Errors: io_failed.
    [[nodiscard]] Result<void> note_needs(Rehearsal rehearsal, std::vector<std::string>& notes) const;
    /// Bytes that are to be kept of the device.
    [[nodiscard]] Bytes bytes(int device) const noexcept;

    /// Reserves what it needs of the host, before a device is asked for anything. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> begin();
    /// Seals and copies what is kept of the session's device; then it is whole and flushed. Errors: those of
    /// Keeper::take().
    [[nodiscard]] Result<void> take(driver::DeviceSession& session, ProgressCounter& progress);
    /// From here on the contents are kept, under the numbers that add() gave; Contents::forget() is the way
    /// back.
    void admit() noexcept { contents_.admit(ranges_, batches_); }
    /// After admit(): renames files that are to stay to *.kept. Not before all are whole: a sleep that fails,
    /// or is killed, leaves only what the next one removes. Errors: out_of_disk, io_failed.
    [[nodiscard]] Result<void> keep_files();

private:
    struct Item {
        Number number = 0;
        driver::DeviceAddress address = 0;
        KeptRange* range = nullptr; ///< in ranges_
    };
    /// One device's part.
    struct Part {
        std::vector<Item> items;
        std::map<std::pair<model::Store, std::string>, Batch*> batches; ///< by store and tag
        Bytes bytes = 0;
    };
    [[nodiscard]] Batch& batch_for(const Label& label, model::Store store);
    [[nodiscard]] static Result<void> take_from_all(Transfer& transfer, const Part& part);

    Contents& contents_;
    SaveOptions options_;
    Options limits_; ///< for each device
    std::map<int, Part> parts_;
    std::map<Number, KeptRange> ranges_;
    Batches batches_;
};

} // namespace gpu_sleep::contents
