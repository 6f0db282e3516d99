// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where threads run that are to stay near a device.

#include "store/near_processors.hpp"

#include "support/catch.hpp"
#include "support/scratch.hpp"
#include "support/skip.hpp"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace gpu_sleep;

namespace {

cpu_set_t processors_of_thread() {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    REQUIRE(::sched_getaffinity(0, sizeof(processors), &processors) == 0);
    return processors;
}

std::vector<int> numbers(const cpu_set_t& processors) {
    std::vector<int> found;
    for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &processors)) found.push_back(i);
    return found;
}

/// A directory of devices in which one has `list`; and where a thread runs that is to stay near it.
struct Device {
    explicit Device(const std::string& list, const std::string& bus_id = "0000:17:00.A") {
        const auto devices = std::filesystem::path(scratch.file("devices"));
        std::filesystem::create_directories(devices / "0000:17:00.a");
        std::ofstream(devices / "0000:17:00.a" / "local_cpulist") << list;
        std::thread([&] {
            {
                const store::StayNear near(bus_id, devices.c_str());
                has_moved = near.has_moved();
                processors = numbers(processors_of_thread());
            }
            afterwards = numbers(processors_of_thread());
        }).join();
    }
    test::Scratch scratch;
    bool has_moved = false;
    std::vector<int> processors;
    std::vector<int> afterwards;
};

} // namespace

TEST_CASE("Near processors: a thread stays on those near the device", "[near_processors]") {
    const auto all = numbers(processors_of_thread());
    if (all.size() < 2) return test::skip("there is one processor");
    const auto last = std::to_string(all.back());
    for (const auto& list : {last + "\n", "5000-6000," + last, last + "-" + last, last + "," + last}) {
        const Device device(list);
        INFO(list);
        CHECK(device.has_moved);
        CHECK(device.processors == std::vector<int>{all.back()});
        CHECK(device.afterwards == all);
    }
    CHECK(numbers(processors_of_thread()) == all);
}

TEST_CASE("Near processors: where all are near, or it is not known, a thread runs as it did",
          "[near_processors]") {
    const auto all = numbers(processors_of_thread());
    for (const auto* const list : {"0-1023\n", "0-99999", "5000", "1022-1023", "", "\n", "x", "0-", "0,",
                                   "-1", "0-1 2", "99999999999"}) {
        const Device device(list);
        INFO(list);
        CHECK_FALSE(device.has_moved);
        CHECK(device.processors == all);
    }
    for (const auto* const bus_id : {"", "0000:18:00.0"}) CHECK_FALSE(Device("0", bus_id).has_moved);
}
