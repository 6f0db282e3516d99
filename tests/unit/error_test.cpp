// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of errors, and the numbers that others share with it.

#include "base/guard.hpp"
#include "gpu_sleep/gpu_sleep.h"
#include "model/model.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;

TEST_CASE("Errors: each code has one row, one number and one name", "[error]") {
    std::set<std::uint16_t> numbers;
    std::set<std::string_view> names;
    for (const auto& row : all_errors()) {
        CHECK(numbers.insert(static_cast<std::uint16_t>(row.code)).second);
        CHECK(names.insert(row.name).second);
        CHECK(&traits(row.code) == &row);
    }
    CHECK(numbers.size() == 29);
    CHECK(traits(static_cast<ErrorCode>(999)).name == "internal");
}

TEST_CASE("Errors: exit statuses are those of the table, by the state afterwards", "[error]") {
    using model::State;
    using enum ErrorCode;
    std::set<ErrorCode> checked;
    const auto check = [&](int awake, int asleep, int partial, std::initializer_list<ErrorCode> codes) {
        for (const auto code : codes) {
            INFO(traits(code).name);
            CHECK(checked.insert(code).second);
            const auto status = [&](State state) {
                return model::exit_status_of({Error{code, "", "", 0}, state});
            };
            CHECK(status(State::awake) == awake);
            CHECK(status(State::paused) == awake); // its memory is where it was
            CHECK(status(State::asleep) == asleep);
            CHECK(status(State::partial) == partial);
        }
    };
    check(1, 7, 7,
          {internal, driver_failed, out_of_device_memory, refused, inhibited, cancelled, protocol_mismatch,
           connection_lost, io_failed, no_refill, no_driver, not_owned, context_lost, unseen_library,
           out_of_threads});
    check(2, 2, 2, {invalid_argument, unknown_tag, ambiguous_name});
    check(3, 3, 3, {no_process, no_agent, agent_unreachable});
    check(4, 4, 4, {timed_out, stopped, capture_in_progress});
    check(5, 5, 5, {not_permitted});
    check(6, 6, 6, {damaged});
    check(8, 7, 8, {out_of_host_memory, out_of_disk});
    check(9, 9, 9, {outcome_unknown});
    CHECK(checked.size() == all_errors().size());
    // A wake leaves asleep what it had no room to bring back, whatever was awake before.
    for (const auto code : {out_of_host_memory, out_of_disk}) {
        const model::Failure failure{Error{code, "", "", 0}, State::partial};
        CHECK(model::exit_status_of(failure, model::Operation::wake) == 7);
    }
}

TEST_CASE("Errors: what fails for want of memory has words all the same", "[error]") {
    const auto failed = guarded([]() -> Result<void> { throw std::bad_alloc(); });
    CHECK(test::error_of(failed).code == ErrorCode::out_of_host_memory);
    CHECK(failed.error().message == "no memory left");
}

TEST_CASE("Errors: the C API's statuses are the same numbers", "[error]") {
    CHECK(GPU_SLEEP_ERROR_INTERNAL == static_cast<int>(ErrorCode::internal));
    CHECK(GPU_SLEEP_ERROR_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
    CHECK(GPU_SLEEP_ERROR_UNKNOWN_TAG == static_cast<int>(ErrorCode::unknown_tag));
    CHECK(GPU_SLEEP_ERROR_TIMED_OUT == static_cast<int>(ErrorCode::timed_out));
    CHECK(GPU_SLEEP_ERROR_DAMAGED == static_cast<int>(ErrorCode::damaged));
    CHECK(GPU_SLEEP_ERROR_DRIVER == static_cast<int>(ErrorCode::driver_failed));
    CHECK(GPU_SLEEP_ERROR_OUT_OF_DEVICE_MEMORY == static_cast<int>(ErrorCode::out_of_device_memory));
    CHECK(GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY == static_cast<int>(ErrorCode::out_of_host_memory));
    CHECK(GPU_SLEEP_ERROR_REFUSED == static_cast<int>(ErrorCode::refused));
    CHECK(GPU_SLEEP_ERROR_CAPTURE_IN_PROGRESS == static_cast<int>(ErrorCode::capture_in_progress));
    CHECK(GPU_SLEEP_ERROR_NO_REFILL == static_cast<int>(ErrorCode::no_refill));
    CHECK(GPU_SLEEP_ERROR_NO_DRIVER == static_cast<int>(ErrorCode::no_driver));
    CHECK(GPU_SLEEP_ERROR_NOT_OWNED == static_cast<int>(ErrorCode::not_owned));
    CHECK(GPU_SLEEP_ERROR_UNSEEN_LIBRARY == static_cast<int>(ErrorCode::unseen_library));
    CHECK(GPU_SLEEP_ERROR_OUT_OF_DISK == static_cast<int>(ErrorCode::out_of_disk));
    CHECK(GPU_SLEEP_ERROR_CONTEXT_LOST == static_cast<int>(ErrorCode::context_lost));
}
