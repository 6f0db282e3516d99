// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pools that are exported by a descriptor, and what is imported of them: programs, rules and mistakes that
// CUDA IPC and descriptors of memory do not have. What all have in common is in sharing_test.cpp.

#include "deep_family.hpp"

#include "base/fd.hpp"
#include "support/catch.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

/// Programs of which the first has a pool, and all others have imported it.
struct PoolFamily {
    explicit PoolFamily(std::size_t count) : family(count) {
        for (std::size_t i = 1; i < count; ++i) hand_pool_over(parent, family[i]);
    }
    [[nodiscard]] bool command(const std::string& name, Arguments options = {}) const {
        return succeeded(run(family.launch(name, with({DeepFamily::root(), "--tree"}, options))));
    }
    void fall_asleep(bool is_deep = false) const {
        REQUIRE(command("gpu-sleep", is_deep ? Arguments{"--deep"} : Arguments{}));
        const auto states = family.states();
        CHECK(states.asleep == family.size());
        CHECK(states.deep == (is_deep ? family.size() : 0));
    }
    void wake() const { REQUIRE(command("gpu-wake")); }
    [[nodiscard]] Piece import(const Piece& piece) {
        auto made = import_pointer(parent, child, piece, k_in_common);
        CHECK(made.hash == piece.hash);
        return made;
    }

    DeepFamily family;
    Host& parent = family[0];
    Host& child = family[1];
};

/// A file that stands for nothing, or for a pool that nobody has.
UniqueFd pool_file(std::size_t bytes, int seals) {
    UniqueFd file(::memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    std::string text(bytes, 'x');
    std::string("GLSPPOL1").copy(text.data(), bytes);
    REQUIRE(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    REQUIRE(::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
    return file;
}

/// Whether the program refuses to import the pool behind a descriptor.
bool is_refused(Host& host, const UniqueFd& file) {
    const Scratch scratch;
    const auto path = scratch.file("socket");
    host.process().send("import_pool " + path);
    send_descriptor(file.get(), path);
    return host.process().read_line().starts_with("error ");
}

} // namespace

TEST_CASE("Sharing: programs that share a pool as the public sample does sleep together, and go on",
          "[sharing]") {
    PoolFamily all(3);
    std::vector<Piece> pieces;
    for (const auto bytes : {k_in_common, k_in_common, k_piece_bytes})
        pieces.push_back(make_piece(all.parent, "shareable", bytes));
    const auto import_all = [&](Host& child) {
        std::vector<Piece> imported;
        for (std::size_t i = 0; i < pieces.size(); ++i)
            imported.push_back(
                import_pointer(all.parent, child, pieces[i], i == 2 ? k_piece_bytes : k_in_common));
        return imported;
    };
    const auto first = import_all(all.family[1]);
    const auto second = import_all(all.family[2]);
    CHECK(all.parent.report("sharers/1") == std::to_string(all.family[2].pid()));
    for (const bool is_deep : {false, true}) {
        all.fall_asleep(is_deep);
        if (!is_deep) CHECK(all.parent.report("residual/0/kind") == "none");
        all.wake();
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            CHECK(all.family[1].tell("hash " + first[i].number) == pieces[i].hash);
            pieces[i].hash = all.family[2].tell("launch " + second[i].number + " 3");
            check_intact(all.parent, pieces[i]);
        }
    }
    for (const auto& piece : first) all.family[1].tell("free " + piece.number);
    for (const auto& piece : second) all.family[2].tell("close " + piece.number);
    for (std::size_t i = 1; i < all.family.size(); ++i) all.family[i].tell("destroy_imported_pool");
    all.family.kill_last();
    for (const auto& piece : pieces) all.parent.tell("free " + piece.number);
    all.fall_asleep(true);
    all.wake();
    all.family.check_all_awake();
}

TEST_CASE("Sharing: a pool's memory may be freed at any time, by whomever", "[sharing]") {
    PoolFamily all(2);
    const auto keep = make_piece(all.parent, "shareable", k_in_common); // in the same range
    const auto given = make_piece(all.parent, "shareable", k_in_common);
    const auto imported = all.import(given);
    const std::string by = GENERATE("free ", "close ");
    const auto alone = [&](Host& host) {
        REQUIRE(host.command("gpu-sleep").status == 0);
        CHECK(host.report("residual/0/kind") == "none");
        REQUIRE(host.command("gpu-wake").status == 0);
    };
    SECTION("by who has imported it, while it sleeps") {
        all.fall_asleep();
        all.child.tell(by + imported.number);
        all.wake();
        all.parent.tell("free " + given.number);
        alone(all.parent);
    }
    SECTION("by who has imported it, at once after a deep sleep") {
        all.fall_asleep(true);
        all.child.process().send(by + imported.number);
        all.wake();
        CHECK(all.child.process().read_line().starts_with("ok"));
        all.parent.tell("free " + given.number);
        alone(all.child);
        all.fall_asleep(true);
        all.wake();
    }
    SECTION("by its owner first") {
        all.parent.tell("free " + given.number);
        CHECK(all.child.tell("hash " + imported.number) == given.hash);
        CHECK_FALSE(all.command("gpu-sleep", {"--deep"}));
        const auto slept = run(all.family.launch("gpu-sleep", {DeepFamily::root(), "--tree", "--json"}));
        REQUIRE(succeeded(slept));
        CHECK_THAT(slept.out,
                   mentions(fmt::format("shared with process {}, which keeps them there", all.parent.pid())));
        CHECK(all.child.report("residual/0/kind") == "ipc");
        CHECK(all.parent.report("residual/0/kind") == "none");
        all.wake();
        CHECK(all.child.tell("hash " + imported.number) == given.hash);
        all.child.tell(by + imported.number);
        all.fall_asleep(true);
        all.wake();
    }
    SECTION("by its owner while it sleeps") {
        all.fall_asleep();
        all.parent.tell("free " + given.number);
        all.wake();
        CHECK(all.child.tell("hash " + imported.number) == given.hash);
        all.child.tell(by + imported.number);
        all.fall_asleep();
        all.wake();
    }
    SECTION("by who has imported it, during a capture") {
        const auto from = make_piece(all.child, "plain", k_in_common);
        const auto to = make_piece(all.child, "plain", k_in_common);
        all.child.tell(fmt::format("capture {} {}", from.number, to.number));
        all.child.tell("close " + imported.number);
        all.child.tell("end_capture");
        CHECK(all.child.tell("replay " + to.number) != to.hash);
        all.parent.tell("free " + given.number);
        all.fall_asleep(true);
        all.wake();
    }
    check_intact(all.parent, keep);
    for (std::size_t i = 0; i < all.family.size(); ++i) check_no_harm(all.family[i]);
}

TEST_CASE("Sharing: an imported pool is as the driver's", "[sharing]") {
    PoolFamily all(2);
    auto given = make_piece(all.parent, "shareable", k_in_common);
    const auto imported = all.import(given);
    const auto again = all.import(given);
    CHECK(again.address == imported.address);
    const auto used = std::to_string(k_in_common);
    CHECK(all.child.tell("describe_imported " + imported.number) == used + " true 1");
    CHECK(all.child.tell(fmt::format("query {} {}", imported.number, k_in_common - 1)) ==
          fmt::format("type 2 device 0 from {} bytes {}", imported.address, k_in_common));
    CHECK(all.child.ask("share " + imported.number).starts_with("error ")); // no other imports it from there
    all.child.tell("free " + again.number);
    given.hash = all.child.tell("launch " + imported.number + " 3");
    check_intact(all.parent, given);
    all.child.tell("destroy_imported_pool");
    all.fall_asleep(true);
    all.wake();
    CHECK(all.child.tell("hash " + imported.number) == given.hash);
    all.child.tell("close " + imported.number);
    CHECK(all.child.ask("close " + imported.number).starts_with("error "));
    all.parent.tell("free " + given.number);
    const auto next = make_piece(all.parent, "shareable", k_in_common);
    CHECK(next.address == given.address); // the rest of the range is as good as ever
}

TEST_CASE("Sharing: an imported pool lets another GPU reach what was imported before, and after",
          "[sharing]") {
    DeepFamily family(2, {}, {"TEST_GPU=1"}); // the first one's
    auto& giver = family[1];
    auto& taker = family[0];
    hand_pool_over(giver, taker);
    std::vector<Piece> pieces, imported;
    const auto share_one = [&] {
        pieces.push_back(make_piece(giver, "shareable", k_in_common));
        imported.push_back(import_pointer(giver, taker, pieces.back(), k_in_common));
    };
    share_one();
    CHECK(imported[0].hash.empty());
    taker.tell("open_imported_pool 1");
    share_one();
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            CHECK(taker.tell("hash " + imported[i].number) == pieces[i].hash);
            pieces[i].hash = taker.tell("launch " + imported[i].number + " 3");
            check_intact(giver, pieces[i]);
        }
        CHECK(family.states_in(ended(run(family.deep()))).deep == 2);
        CHECK(succeeded(family.wake()));
    }
    CHECK(taker.tell("query " + imported[1].number + " 0").starts_with("type 2 device 0"));
    for (const auto& piece : imported) taker.tell("close " + piece.number);
}

TEST_CASE("Sharing: nobody imports by what is no pool, or no pointer of that pool", "[sharing]") {
    PoolFamily all(3);
    const auto given = make_piece(all.parent, "shareable", k_in_common);
    const auto plain = make_piece(all.parent, "plain", k_in_common);
    const auto pointer = all.parent.tell("share " + given.number);
    const auto refuses = [](Host& host, const std::string& text) {
        return host.ask(fmt::format("import_pointer {} {}", text, k_in_common)).starts_with("error ");
    };
    CHECK(refuses(all.child, pointer.substr(0, 2 * 56) + "00000000000000ff"));
    CHECK(refuses(all.child, pointer.substr(0, 2 * 56) + "0000000000000000"));
    for (std::size_t i = 0; i < pointer.size(); i += 2) {
        auto forged = pointer;
        forged[i] = forged[i] == '0' ? '1' : '0';
        INFO(i);
        CHECK((refuses(all.child, forged) || i >= 2 * 56)); // the last eight bytes are its size
    }
    CHECK(refuses(all.child, all.parent.tell("share " + plain.number)));
    CHECK(all.child.ask(fmt::format("open {} {}", pointer, k_in_common)).starts_with("error "));
    CHECK(refuses(all.child, std::string(128, '0')));
    hand_pool_over(all.family[2], all.child); // another's
    CHECK(refuses(all.child, pointer));
    constexpr int k_seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    CHECK(is_refused(all.child, pool_file(72, F_SEAL_SEAL))); // who wrote it can still change it
    CHECK(is_refused(all.child, pool_file(40, k_seals)));
    CHECK_FALSE(is_refused(all.child, pool_file(72, k_seals))); // and there is nothing in it
    CHECK(refuses(all.child, pointer));
    CHECK(refuses(all.child, std::string(128, 'f')));
    hand_pool_over(all.parent, all.child);
    static_cast<void>(all.import(given));
    hand_pool_over(all.parent, all.family[2]);
    all.parent.kill();
    CHECK(refuses(all.family[2], pointer));
}

TEST_CASE("Sharing: what the driver refuses of a shared pool fails, and can be tried again", "[sharing]") {
    const std::string call =
        GENERATE("cuMemPoolCreate", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess");
    INFO(call);
    Captured giver(k_linked), taker(k_linked, {fmt::format("GPU_SLEEP_SIM_FAIL={}:1:2", call)});
    const auto given = make_piece(giver, "shareable", k_in_common);
    taker.tell("start");
    const auto before = free_bytes(taker);
    if (call == "cuMemPoolCreate") CHECK_FALSE(try_to_hand_pool_over(giver, taker));
    hand_pool_over(giver, taker);
    const auto pointer =
        fmt::format("import_pointer {} {}", giver.tell("share " + given.number), k_in_common);
    if (call != "cuMemPoolCreate") CHECK(taker.ask(pointer).starts_with("error "));
    CHECK(taker.ask(pointer).starts_with("ok 0 "));
    CHECK(taker.tell("hash 0") == given.hash);
    taker.tell("free 0");
    CHECK(free_bytes(taker) == before);
    check_intact(giver, given);
}

TEST_CASE("Sharing: a pool is the driver's as a whole, or not at all", "[sharing]") {
    Captured giver(k_linked, {"GPU_SLEEP_MIN_SIZE=1048576"}), taker(k_linked);
    const bool is_drivers = GENERATE(false, true);
    std::vector<std::uint64_t> sizes{k_piece_bytes, k_in_common};
    if (is_drivers) std::swap(sizes[0], sizes[1]);
    std::vector<Piece> pieces;
    for (const auto bytes : sizes) pieces.push_back(make_piece(giver, "shareable", bytes));
    hand_pool_over(giver, taker);
    for (std::size_t i = 0; i < pieces.size(); ++i)
        CHECK(import_pointer(giver, taker, pieces[i], sizes[i]).hash == pieces[i].hash);
    CHECK(giver.report("residual/0/kind") == (is_drivers ? "pool" : "ipc"));
    giver.cycle();
    for (const auto& piece : pieces) check_intact(giver, piece);
}
