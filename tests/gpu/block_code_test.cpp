// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernels that code blocks compute bit for bit what the functions for the host do, in device memory and
// in host memory, and touch nothing outside of a block, damaged or not.

#include "driver/block_coder.hpp"
#include "driver/context.hpp"
#include "driver/device_session.hpp"

#include "support/block_encoder.hpp"
#include "support/blocks.hpp"
#include "support/catch.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

using namespace gpu_sleep;
using namespace gpu_sleep::driver;
using codec::BlockClass;
using codec::BlockPlan;
using test::ByteVector;

namespace {

constexpr std::byte k_unwritten{0xAB};

template <class T>
T take(Result<T> result) {
    REQUIRE(result);
    return *std::move(result);
}

/// The coder of the first device, whose context is current.
class Coder {
public:
    Coder()
        : api_(load()), context_(take(PrimaryContext::retain(api_, 0))), current_(api_, context_.get()),
          coder_(take(BlockCoder::load(api_))) {}

    [[nodiscard]] const Api& api() const { return api_; }
    void run(BlockWork work, std::span<BlockTask> tasks, CodedSide side = CodedSide::device) const {
        REQUIRE(coder_->run(work, tasks, side, CU_STREAM_PER_THREAD));
        REQUIRE(cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    }

private:
    static Api load() {
        auto api = take(Api::load());
        REQUIRE(initialise(api));
        return api;
    }

    const Api api_;
    const PrimaryContext context_;
    const CurrentContext current_;
    const std::unique_ptr<BlockCoder> coder_;
};

/// Page-locked memory for tasks.
class Tasks {
public:
    Tasks(const Coder& coder, std::size_t count)
        : buffer_(take(MappedBuffer::create(coder.api(), count * sizeof(BlockTask)))) {
        std::uninitialized_value_construct_n(all().data(), count);
    }
    [[nodiscard]] std::span<BlockTask> all() const {
        return {reinterpret_cast<BlockTask*>(buffer_->data()), buffer_->bytes() / sizeof(BlockTask)};
    }

private:
    std::unique_ptr<MappedBuffer> buffer_;
};

/// Memory of the device, or of the host as the product pins it.
class Memory {
public:
    Memory(const Coder& coder, CodedSide side, std::size_t bytes) : coder_(coder), bytes_(bytes) {
        if (side == CodedSide::device) {
            REQUIRE(cuMemAlloc(&address_, bytes) == CUDA_SUCCESS);
        } else {
            host_ = static_cast<std::byte*>(
                ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            REQUIRE(host_ != MAP_FAILED);
            REQUIRE(pin_host_memory(coder.api(), {host_, bytes}));
            address_ = reinterpret_cast<std::uint64_t>(host_);
        }
        write(ByteVector(bytes, k_unwritten));
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
        if (!host_) {
            cuMemFree(address_);
        } else {
            CHECK(unpin_host_memory(coder_.api(), {host_, bytes_}));
            ::munmap(host_, bytes_);
        }
    }

    [[nodiscard]] std::uint64_t address() const { return address_; }
    void write(const ByteVector& bytes, std::size_t at = 0) {
        if (host_)
            std::copy(bytes.begin(), bytes.end(), host_ + at);
        else
            REQUIRE(cuMemcpyHtoD(address_ + at, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    }
    [[nodiscard]] ByteVector read() const {
        ByteVector bytes(bytes_);
        if (host_)
            std::copy_n(host_, bytes_, bytes.begin());
        else
            REQUIRE(cuMemcpyDtoH(bytes.data(), address_, bytes_) == CUDA_SUCCESS);
        return bytes;
    }

private:
    const Coder& coder_;
    std::size_t bytes_;
    CUdeviceptr address_ = 0;
    std::byte* host_ = nullptr;
};

/// Blocks in a row, with memory between them that must stay as it is.
class Blocks {
public:
    Blocks(const Coder& coder, CodedSide side, const std::vector<std::size_t>& sizes)
        : places_(places_of(sizes)), memory_(coder, side, places_.back()) {}

    [[nodiscard]] std::uint64_t address(std::size_t i) const { return memory_.address() + places_[i]; }
    void write(std::size_t i, const ByteVector& bytes) { memory_.write(bytes, places_[i]); }
    void fetch() { fetched_ = memory_.read(); }
    /// Whether block i is `expected`, and nothing behind it was written.
    [[nodiscard]] bool is(std::size_t i, const ByteVector& expected) const {
        return std::memcmp(&fetched_[places_[i]], expected.data(), expected.size()) == 0 &&
               is_unwritten_from(i, expected.size());
    }
    [[nodiscard]] bool is_unwritten_from(std::size_t i, std::size_t bytes) const {
        const ByteVector rest(places_[i + 1] - places_[i] - bytes, k_unwritten);
        return std::memcmp(&fetched_[places_[i] + bytes], rest.data(), rest.size()) == 0;
    }

private:
    static std::vector<std::size_t> places_of(const std::vector<std::size_t>& sizes) {
        std::vector<std::size_t> places{0};
        for (const auto size : sizes) places.push_back(places.back() + (size + 511) / 256 * 256);
        return places;
    }
    const std::vector<std::size_t> places_;
    Memory memory_;
    ByteVector fetched_;
};

/// Contents, and how they are to be coded.
struct Case {
    std::string name;
    ByteVector content;
    BlockPlan plan;
};

constexpr CodedSide k_sides[] = {CodedSide::device, CodedSide::host};
constexpr std::size_t k_sizes[] = {
    17, 4095, 4096, 3 * 4096, 17 * 4096, codec::k_largest_block - 4096, codec::k_largest_block};

constexpr std::size_t k_small = 100'000;

/// As each is measured.
std::vector<Case> measured_cases() {
    std::vector<Case> found;
    for (const auto& [name, make] : test::block_contents())
        for (const auto bytes : k_sizes) {
            const auto content = make(bytes);
            found.push_back({name, content, test::measure_block(content)});
        }
    return found;
}

/// Those that are coded, and small contents by each class.
std::vector<Case> cases() {
    std::vector<Case> found;
    for (const auto& [name, content, measured] : measured_cases()) {
        auto plan = measured;
        if (plan.block_class != BlockClass::raw) found.push_back({name, content, plan});
        if (content.size() > k_small || content.size() % codec::k_coded_unit != 0) continue;
        if (plan.block_class == BlockClass::raw)
            for (auto& symbol : plan.symbols)
                symbol = static_cast<std::uint8_t>(3 + 7 * (&symbol - plan.symbols));
        for (unsigned i = 0; i < codec::k_coded_classes; ++i) {
            plan.block_class = codec::coded_class(i);
            found.push_back({name, content, plan});
        }
    }
    return found;
}

/// The sizes of the contents.
std::vector<std::size_t> sizes_of(const std::vector<Case>& all) {
    std::vector<std::size_t> sizes;
    for (const auto& each : all) sizes.push_back(each.content.size());
    return sizes;
}

ByteVector encoded_on_host(const BlockPlan& plan, const ByteVector& content) {
    ByteVector coded(2 * content.size() + 8192);
    coded.resize(test::encode_block(plan, content, coded));
    return coded;
}

/// Encodes each content into so many bytes of its block of `coded`, and fetches those.
void encode(const Coder& coder, CodedSide side, const std::vector<Case>& all,
            const std::vector<std::size_t>& rooms, Blocks& contents, Blocks& coded, const Tasks& tasks) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        contents.write(i, all[i].content);
        auto plan = all[i].plan;
        plan.coded_bytes = static_cast<std::uint32_t>(rooms[i]);
        tasks.all()[i] = {.content = contents.address(i),
                          .coded = coded.address(i),
                          .content_bytes = static_cast<std::uint32_t>(all[i].content.size()),
                          .plan = plan};
    }
    coder.run(BlockWork::encode, tasks.all(), side);
    coded.fetch();
}

} // namespace

TEST_CASE("Block code kernels: measuring finds what the host finds", "[gpu_block_code]") {
    const Coder coder;
    const auto all = measured_cases();
    Blocks contents(coder, CodedSide::device, sizes_of(all));
    const Tasks tasks(coder, all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        contents.write(i, all[i].content);
        tasks.all()[i] = {.content = contents.address(i),
                          .content_bytes = static_cast<std::uint32_t>(all[i].content.size())};
    }
    coder.run(BlockWork::measure, tasks.all());
    for (std::size_t i = 0; i < all.size(); ++i) {
        CAPTURE(all[i].name, all[i].content.size());
        CHECK((tasks.all()[i].plan == all[i].plan));
    }
}

TEST_CASE("Block code kernels: encode and decode as the host does, on either side", "[gpu_block_code]") {
    const Coder coder;
    const auto all = cases();
    std::vector<ByteVector> expected;
    std::vector<std::size_t> sizes;
    for (const auto& each : all) {
        expected.push_back(encoded_on_host(each.plan, each.content));
        sizes.push_back(expected.back().size() + 100);
    }
    auto rooms = sizes;
    for (std::size_t i = 0; i < rooms.size(); i += 2) rooms[i] = expected[i].size();
    for (const auto side : k_sides) {
        Blocks contents(coder, CodedSide::device, sizes_of(all));
        Blocks coded(coder, side, sizes);
        Blocks decoded(coder, CodedSide::device, sizes_of(all));
        const Tasks tasks(coder, all.size());
        encode(coder, side, all, rooms, contents, coded, tasks);
        for (std::size_t i = 0; i < all.size(); ++i) {
            CAPTURE(all[i].name, all[i].content.size(), static_cast<int>(all[i].plan.block_class));
            auto& task = tasks.all()[i];
            CHECK(task.failed == 0);
            CHECK(task.plan.coded_bytes == expected[i].size());
            CHECK(coded.is(i, expected[i]));
            task.content = decoded.address(i);
        }
        coder.run(BlockWork::decode, tasks.all(), side);
        decoded.fetch();
        for (std::size_t i = 0; i < all.size(); ++i) {
            CAPTURE(all[i].name, all[i].content.size(), static_cast<int>(all[i].plan.block_class));
            CHECK(tasks.all()[i].failed == 0);
            CHECK(decoded.is(i, all[i].content));
        }
    }
}

TEST_CASE("Block code kernels: what does not fit is told, and writes nothing past its room",
          "[gpu_block_code]") {
    const Coder coder;
    auto all = cases();
    std::erase_if(all, [](const Case& each) { return each.content.size() > k_small; });
    std::vector<std::size_t> rooms;
    for (const auto& each : all) {
        const auto needed = encoded_on_host(each.plan, each.content).size();
        rooms.push_back(rooms.size() % 3 == 0 ? needed / 2 : needed - 1);
    }
    for (const auto side : k_sides) {
        Blocks contents(coder, CodedSide::device, sizes_of(all));
        Blocks coded(coder, side, rooms);
        const Tasks tasks(coder, all.size());
        encode(coder, side, all, rooms, contents, coded, tasks);
        for (std::size_t i = 0; i < all.size(); ++i) {
            CAPTURE(all[i].name, all[i].content.size(), static_cast<int>(all[i].plan.block_class));
            CHECK(tasks.all()[i].failed == 1);
            CHECK(coded.is_unwritten_from(i, rooms[i]));
        }
    }
}

TEST_CASE("Block code kernels: damage at any byte is judged as on the host", "[gpu_block_code]") {
    const Coder coder;
    const auto side = GENERATE(CodedSide::device, CodedSide::host);
    std::mt19937 random(1);
    for (unsigned c = 0; c < codec::k_coded_classes; ++c) {
        const auto content = test::bytes_of(
            4096, [&](std::size_t) { return static_cast<std::uint16_t>(0x3F00 + random() % 4096); });
        auto plan = test::measure_block(content);
        plan.block_class = codec::coded_class(c);
        const auto whole = encoded_on_host(plan, content);
        plan.coded_bytes = static_cast<std::uint32_t>(whole.size());
        Blocks coded(coder, side, std::vector(whole.size(), whole.size()));
        Blocks decoded(coder, CodedSide::device, std::vector(whole.size(), content.size()));
        const Tasks tasks(coder, whole.size());
        const auto damaged = [&](std::size_t at) {
            auto bytes = whole;
            bytes[at] ^= static_cast<std::byte>(at % 3 == 0 ? 0xFF : 1U << at % 8);
            return bytes;
        };
        for (std::size_t at = 0; at < whole.size(); ++at) {
            coded.write(at, damaged(at));
            tasks.all()[at] = {.content = decoded.address(at),
                               .coded = coded.address(at),
                               .content_bytes = static_cast<std::uint32_t>(content.size()),
                               .plan = plan};
        }
        coder.run(BlockWork::decode, tasks.all(), side);
        decoded.fetch();
        for (std::size_t at = 0; at < whole.size(); ++at) {
            CAPTURE(static_cast<int>(plan.block_class), at);
            ByteVector expected(content.size());
            const bool is_whole = codec::decode_block(plan.block_class, damaged(at), expected);
            CHECK(tasks.all()[at].failed == (is_whole ? 0 : 1));
            CHECK((is_whole ? decoded.is(at, expected) : decoded.is_unwritten_from(at, expected.size())));
        }
    }
}

// Each block has memory of its own, of its very size: compute-sanitizer sees what is read or written past it.
TEST_CASE("Block code kernels: offsets that lead elsewhere are refused", "[gpu_block_code]") {
    const Coder coder;
    const auto content = test::random_bytes(65'536);
    for (unsigned c = 0; c < codec::k_coded_classes; ++c) {
        auto plan = test::measure_block(content);
        plan.block_class = codec::coded_class(c);
        const auto whole = encoded_on_host(plan, content);
        plan.coded_bytes = static_cast<std::uint32_t>(whole.size());
        std::vector<std::pair<std::size_t, std::uint32_t>> damages; // an offset for a tile
        const auto size = static_cast<std::uint32_t>(whole.size());
        for (const std::size_t tile : {0, 1, 15})
            for (const auto offset : {0xFFFF'FFFFU, 0xFFFF'FF00U, 0x8000'0000U, size, size / 2})
                damages.emplace_back(tile, offset);
        std::vector<std::unique_ptr<Memory>> coded;
        std::vector<std::unique_ptr<Memory>> decoded;
        const Tasks tasks(coder, damages.size());
        const auto damaged = [&](std::size_t i) {
            auto bytes = whole;
            std::memcpy(&bytes[codec::k_line + 4 * damages[i].first], &damages[i].second, 4);
            return bytes;
        };
        for (std::size_t i = 0; i < damages.size(); ++i) {
            coded.push_back(std::make_unique<Memory>(coder, CodedSide::device, whole.size()));
            decoded.push_back(std::make_unique<Memory>(coder, CodedSide::device, content.size()));
            coded.back()->write(damaged(i));
            tasks.all()[i] = {.content = decoded.back()->address(),
                              .coded = coded.back()->address(),
                              .content_bytes = static_cast<std::uint32_t>(content.size()),
                              .plan = plan};
        }
        coder.run(BlockWork::decode, tasks.all(), CodedSide::device);
        for (std::size_t i = 0; i < damages.size(); ++i) {
            CAPTURE(static_cast<int>(plan.block_class), damages[i].first, damages[i].second);
            ByteVector expected(content.size());
            const bool is_whole = codec::decode_block(plan.block_class, damaged(i), expected);
            CHECK(tasks.all()[i].failed == (is_whole ? 0 : 1));
            if (is_whole) CHECK((decoded[i]->read() == expected));
        }
    }
}
