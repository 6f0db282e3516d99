// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Entries for the journal: their bytes, and that sending one never waits.

#include "base/log.hpp"

#include "support/fake_journal.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Journal: a value has one line, whatever is in it", "[journal]") {
    const journal::Field fields[] = {{"MESSAGE", "two\nlines=1"}, {"PRIORITY", "6"}, {"EMPTY", ""}};
    CHECK(journal::encode(fields) == "MESSAGE=two?lines=1\nPRIORITY=6\nEMPTY=\n");
    const auto entry = parse_entry(journal::encode(fields));
    CHECK(entry == Entry{{"MESSAGE", "two?lines=1"}, {"PRIORITY", "6"}, {"EMPTY", ""}});
}

TEST_CASE("Journal: what is not taken at once is lost, and nobody waits", "[journal]") {
    const Scratch scratch;
    const journal::Field fields[] = {{"MESSAGE", "hello"}};
    const auto path = scratch.file("socket");
    CHECK_FALSE(journal::send(path, fields)); // nobody is there
    CHECK_FALSE(journal::send("", fields));
    CHECK_FALSE(journal::send('/' + std::string(200, 'x'), fields));
    {
        const FakeJournal taker(path);
        CHECK(journal::send(path, fields));
        CHECK(taker.next() == Entry{{"MESSAGE", "hello"}});
        const auto start = Clock::now();
        int taken = 0;
        while (taken < 100'000 && journal::send(path, fields)) ++taken;
        CHECK(taken > 0);
        CHECK(taken < 100'000); // its queue is full
        CHECK(seconds_since(start) < 30);
    }
    CHECK_FALSE(journal::send(path, fields)); // its file is there still, and it has gone
}
