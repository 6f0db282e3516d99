// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint kernel computes what the function for the host does, on blocks of each length and
// alignment.

#include "driver/device_session.hpp"
#include "driver/fingerprint_key.hpp"

#include "support/driver_testing.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::driver;

namespace {

constexpr std::size_t k_block = k_fingerprint_block_bytes;

/// A session on the first device, which is entered.
class Device {
public:
    Device() : api_(load()), session_(open(api_)), current_(session_->enter()) {}

    [[nodiscard]] DeviceSession& session() const { return *session_; }

private:
    static Api load() {
        auto api = Api::load();
        REQUIRE(api);
        REQUIRE(initialise(*api));
        return *api;
    }
    static std::unique_ptr<DeviceSession> open(const Api& api) {
        auto context = PrimaryContext::retain(api, 0);
        REQUIRE(context);
        auto session = DeviceSession::open(api, *std::move(context));
        REQUIRE(session);
        return *std::move(session);
    }

    const Api api_;
    const std::unique_ptr<DeviceSession> session_;
    const CurrentContext current_;
};

/// Memory on the device that holds `bytes`.
class Copy {
public:
    explicit Copy(const std::vector<std::byte>& bytes) : host_(bytes) {
        REQUIRE(cuMemAlloc(&address_, bytes.size()) == CUDA_SUCCESS);
        REQUIRE(cuMemcpyHtoD(address_, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    ~Copy() { cuMemFree(address_); }

    /// The fingerprints of these parts, by the kernel; each is checked.
    std::vector<Fingerprint> check(DeviceSession& session, const std::vector<FingerprintBlock>& parts) const {
        std::vector<FingerprintBlock> on_device;
        std::vector<FingerprintBlock> on_host;
        for (const auto& part : parts) {
            on_device.push_back({address_ + part.address, part.bytes});
            on_host.push_back({reinterpret_cast<std::uint64_t>(host_.data()) + part.address, part.bytes});
        }
        const auto found = session.fingerprint(on_device);
        REQUIRE(found);
        REQUIRE(session.synchronize());
        const auto key = process_fingerprint_key();
        REQUIRE(key);
        std::vector<Fingerprint> expected(parts.size());
        fingerprint_on_host(**key, on_host.data(), expected.data(), expected.size());
        for (std::size_t i = 0; i < parts.size(); ++i) {
            CAPTURE(parts[i].address, parts[i].bytes);
            CHECK((*found)[i] == expected[i]);
        }
        return {found->begin(), found->end()};
    }

private:
    const std::vector<std::byte>& host_;
    CUdeviceptr address_ = 0;
};

constexpr auto k_lengths = std::to_array<std::uint64_t>(
    {1, 3, 15, 16, 17, 512, 8191, 8192, 8193, 100'001, k_block - 8192, k_block - 37, k_block});

} // namespace

TEST_CASE("Fingerprint kernel: equals the function for the host at each alignment and length",
          "[gpu_fingerprint]") {
    const Device device;
    const auto bytes = driver_testing::random_bytes(2 * k_block);
    const Copy copy(bytes);
    std::vector<FingerprintBlock> parts;
    for (const auto length : k_lengths) {
        for (std::uint64_t begin = 0; begin < 34; ++begin) parts.push_back({begin, length});
        parts.push_back({bytes.size() - length, length}); // up to the end of the memory
    }
    copy.check(device.session(), parts);
}

TEST_CASE("Fingerprint kernel: takes more blocks than it is launched for", "[gpu_fingerprint]") {
    const Device device;
    const auto bytes = driver_testing::random_bytes(k_block);
    const Copy copy(bytes);
    std::vector<FingerprintBlock> parts;
    for (std::uint64_t i = 0; i < 20'000; ++i) parts.push_back({i * 50, 1 + i % 300});
    copy.check(device.session(), parts);
}

TEST_CASE("Fingerprint kernel: finds zeros exactly", "[gpu_fingerprint]") {
    const Device device;
    for (const auto length : k_lengths) {
        for (const std::uint64_t begin : {64, 69}) {
            std::vector<std::byte> bytes(2 * k_block, std::byte{0xFF});
            const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
            std::fill(first, first + static_cast<std::ptrdiff_t>(length), std::byte{0});
            CHECK(Copy(bytes).check(device.session(), {{begin, length}}).front().is_zero);
            // One bit: at the ends, in the middle, in the last thread of a row.
            for (const auto place :
                 {std::uint64_t{0}, length / 2, std::min<std::uint64_t>(8191, length - 1), length - 1}) {
                const auto at = first + static_cast<std::ptrdiff_t>(place);
                *at = std::byte{0x10};
                CHECK_FALSE(Copy(bytes).check(device.session(), {{begin, length}}).front().is_zero);
                *at = std::byte{0};
            }
        }
    }
}

TEST_CASE("Fingerprint kernel: copies what it reads", "[gpu_fingerprint]") {
    const Device device;
    const auto bytes = driver_testing::random_bytes(8 * k_block);
    CUdeviceptr from = 0;
    CUdeviceptr to = 0;
    REQUIRE(cuMemAlloc(&from, bytes.size()) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc(&to, bytes.size()) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD(from, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8(to, 0, bytes.size()) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS); // the session's stream waits for no other
    std::vector<FingerprintBlock> blocks;
    std::vector<FingerprintBlock> on_host;
    std::vector<std::byte> expected(bytes.size());
    std::uint64_t at = 0;
    for (const std::uint64_t length :
         {std::uint64_t{16}, std::uint64_t{8192}, std::uint64_t{8208}, std::uint64_t{100'000}, k_block}) {
        blocks.push_back({from + at, length, to + at});
        on_host.push_back({reinterpret_cast<std::uint64_t>(bytes.data()) + at, length});
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length,
                    expected.begin() + static_cast<std::ptrdiff_t>(at));
        at += k_block + 4096;
    }
    const auto found = device.session().fingerprint(blocks);
    REQUIRE(found);
    REQUIRE(device.session().synchronize());
    const auto key = process_fingerprint_key();
    REQUIRE(key);
    std::vector<Fingerprint> fingerprints(blocks.size());
    fingerprint_on_host(**key, on_host.data(), fingerprints.data(), fingerprints.size());
    CHECK(std::equal(found->begin(), found->end(), fingerprints.begin(), fingerprints.end()));
    std::vector<std::byte> copied(bytes.size());
    REQUIRE(cuMemcpyDtoH(copied.data(), to, copied.size()) == CUDA_SUCCESS);
    CHECK((copied == expected));
    cuMemFree(from);
    cuMemFree(to);
}
