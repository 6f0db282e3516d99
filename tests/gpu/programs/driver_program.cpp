// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program that is linked to libcuda itself: plain, pitched, stream-ordered and pooled memory, the
// virtual memory calls, and kernels from PTX.

#include "checked.hpp"
#include "program.hpp"

#include <cuda.h>

namespace {

constexpr std::size_t k_mib = 1 << 20;

/// words[i] = words[i] * 1664525 + 1013904223 + (i ^ salt), one thread a word.
constexpr const char* k_mix = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry mix(.param .u64 words, .param .u32 count, .param .u32 salt) {
    .reg .pred %outside;
    .reg .b32 %i, %n, %s, %block, %size, %value;
    .reg .b64 %address, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %size, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra DONE;
    ld.param.u32 %s, [salt];
    ld.param.u64 %address, [words];
    cvta.to.global.u64 %address, %address;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %address, %address, %offset;
    ld.global.u32 %value, [%address];
    mad.lo.u32 %value, %value, 1664525, 1013904223;
    xor.b32 %s, %s, %i;
    add.u32 %value, %value, %s;
    st.global.u32 [%address], %value;
DONE:
    ret;
}
)";

struct Buffer {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
};

class Program {
public:
    explicit Program(double scale) {
        const auto size = [=](double mib) { return static_cast<std::size_t>(mib * scale + 1) * k_mib; };
        CHECKED(cuInit(0));
        CHECKED(cuDeviceGet(&device_, 0));
        CUcontext context = nullptr;
        CHECKED(cuDevicePrimaryCtxRetain(&context, device_));
        CHECKED(cuCtxSetCurrent(context));
        CHECKED(cuModuleLoadData(&module_, k_mix));
        CHECKED(cuModuleGetFunction(&mix_, module_, "mix"));
        CHECKED(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        for (const double mib : {200.0, 80.0, 30.0, 3.0}) make_plain(size(mib));
        for (int i = 0; i < 50; ++i) make_plain(100'000);
        make_pitched(size(64));
        make_ordered(size(100));
        make_pooled(size(100));
        make_mapped(size(128), 1);
        make_mapped(size(64), 4);
        for (std::size_t i = 0; i < buffers_.size(); ++i)
            CHECKED(cuMemsetD32Async(buffers_[i].address, 0x9E3779B9U * static_cast<unsigned>(i + 1),
                                     buffers_[i].bytes / 4, stream_));
        CHECKED(cuStreamSynchronize(stream_));
    }

    void step(int number) {
        for (std::size_t i = 0; i < buffers_.size(); ++i)
            launch(buffers_[i], static_cast<unsigned>(number * 1000) + static_cast<unsigned>(i));
        const auto& from = buffers_[static_cast<std::size_t>(number) % buffers_.size()];
        const auto& to = buffers_[static_cast<std::size_t>(number * 3 + 1) % buffers_.size()];
        if (from.address != to.address)
            CHECKED(cuMemcpyDtoDAsync(to.address, from.address, std::min(from.bytes, to.bytes), stream_));
        Buffer passing{0, 24 * k_mib};
        CHECKED(cuMemAllocAsync(&passing.address, passing.bytes, stream_));
        CHECKED(cuMemcpyDtoDAsync(passing.address, buffers_[0].address,
                                  std::min(passing.bytes, buffers_[0].bytes), stream_));
        launch(passing, static_cast<unsigned>(number));
        CHECKED(cuMemcpyDtoDAsync(buffers_[0].address, passing.address,
                                  std::min(passing.bytes, buffers_[0].bytes), stream_));
        CHECKED(cuMemFreeAsync(passing.address, stream_));
        CHECKED(cuStreamSynchronize(stream_));
        remap(number);
        std::array<unsigned char, 4096> sample;
        CHECKED(cuMemcpyDtoH(sample.data(), to.address, sample.size()));
        digest_.add(sample.data(), sample.size());
    }

    std::string digest() {
        std::vector<unsigned char> host;
        for (const auto& buffer : buffers_) {
            host.resize(buffer.bytes);
            CHECKED(cuMemcpyDtoH(host.data(), buffer.address, buffer.bytes));
            digest_.add(host.data(), host.size());
        }
        return digest_.finish();
    }

private:
    void make_plain(std::size_t bytes) {
        Buffer buffer{0, bytes};
        CHECKED(cuMemAlloc(&buffer.address, bytes));
        buffers_.push_back(buffer);
    }
    void make_pitched(std::size_t bytes) {
        constexpr std::size_t k_width = 10'000;
        Buffer buffer;
        std::size_t pitch = 0;
        CHECKED(cuMemAllocPitch(&buffer.address, &pitch, k_width, bytes / k_width, 16));
        buffer.bytes = pitch * (bytes / k_width);
        buffers_.push_back(buffer);
    }
    void make_ordered(std::size_t bytes) {
        Buffer buffer{0, bytes};
        CHECKED(cuMemAllocAsync(&buffer.address, bytes, stream_));
        buffers_.push_back(buffer);
    }
    void make_pooled(std::size_t bytes) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CHECKED(cuMemPoolCreate(&pool_, &properties));
        Buffer buffer{0, bytes};
        CHECKED(cuMemAllocFromPoolAsync(&buffer.address, bytes, pool_, stream_));
        buffers_.push_back(buffer);
    }

    [[nodiscard]] CUmemAllocationProp properties() const {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
        return properties;
    }
    void grant(CUdeviceptr address, std::size_t bytes) const {
        CUmemAccessDesc access{};
        access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CHECKED(cuMemSetAccess(address, bytes, &access, 1));
    }
    /// One reservation, backed by `pieces` handles.
    void make_mapped(std::size_t bytes, std::size_t pieces) {
        const auto wanted = properties();
        std::size_t granularity = 0;
        CHECKED(cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        const auto piece = (bytes / pieces + granularity - 1) / granularity * granularity;
        Buffer buffer{0, piece * pieces};
        CHECKED(cuMemAddressReserve(&buffer.address, buffer.bytes, 0, 0, 0));
        for (std::size_t i = 0; i < pieces; ++i) {
            CUmemGenericAllocationHandle handle = 0;
            CHECKED(cuMemCreate(&handle, piece, &wanted, 0));
            CHECKED(cuMemMap(buffer.address + i * piece, piece, 0, handle, 0));
            CHECKED(cuMemRelease(handle)); // the mapping keeps it
        }
        grant(buffer.address, buffer.bytes);
        buffers_.push_back(buffer);
        last_mapped_ = buffer;
        last_piece_ = piece;
    }

    /// Moves a piece of the last such reservation to another address and back.
    void remap(int number) {
        const auto place = last_mapped_.address + static_cast<std::size_t>(number % 4) * last_piece_;
        CUmemGenericAllocationHandle handle = 0;
        CHECKED(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(place)));
        CUdeviceptr elsewhere = 0;
        CHECKED(cuMemAddressReserve(&elsewhere, last_piece_, 0, 0, 0));
        CHECKED(cuMemUnmap(place, last_piece_));
        CHECKED(cuMemMap(elsewhere, last_piece_, 0, handle, 0));
        grant(elsewhere, last_piece_);
        launch({elsewhere, last_piece_}, static_cast<unsigned>(number));
        CHECKED(cuStreamSynchronize(stream_));
        CHECKED(cuMemUnmap(elsewhere, last_piece_));
        CHECKED(cuMemAddressFree(elsewhere, last_piece_));
        CHECKED(cuMemMap(place, last_piece_, 0, handle, 0));
        grant(place, last_piece_);
        CHECKED(cuMemRelease(handle));
    }

    void launch(Buffer buffer, unsigned salt) {
        auto count = static_cast<unsigned>(buffer.bytes / 4);
        void* parameters[] = {&buffer.address, &count, &salt};
        CHECKED(cuLaunchKernel(mix_, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream_, parameters, nullptr));
    }

    CUdevice device_ = 0;
    CUmodule module_ = nullptr;
    CUfunction mix_ = nullptr;
    CUstream stream_ = nullptr;
    CUmemoryPool pool_ = nullptr;
    std::vector<Buffer> buffers_;
    Buffer last_mapped_;
    std::size_t last_piece_ = 0;
    Digest digest_;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    return run(options, Program(options.scale));
}
