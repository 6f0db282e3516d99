// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The door's threads: apart from its other tests, for these are what the thread sanitizer can see.

#include "cli/http/server.hpp"
#include "support/catch.hpp"

using gpu_sleep::cli::http::Lane;

TEST_CASE("Lanes: jobs run in their order, and what waits is run at the end", "[http]") {
    std::atomic<int> done = 0;
    std::promise<void> begun, go;
    {
        Lane lane;
        REQUIRE(lane.add([&, gone = go.get_future().share()] {
            begun.set_value();
            gone.wait();
            CHECK(done++ == 0);
        }));
        begun.get_future().wait();
        CHECK(lane.add([&] { CHECK(done++ == 1); }));
        CHECK(lane.add([&] { CHECK(done++ == 2); }));
        go.set_value();
        lane.close();
        CHECK_FALSE(lane.add([&] { ++done; }));
    }
    CHECK(done == 3);
}
