// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program that decodes images by nvJPEG, which uses the GPU's hardware for that where there is
// any. It makes the images itself.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>
#include <nvjpeg.h>

namespace {

constexpr int k_side = 1024; // pixels
constexpr std::size_t k_bytes = std::size_t{3} * k_side * k_side;

using Bytes = std::vector<unsigned char>;

/// Colours that change slowly, with a pattern.
Bytes draw(unsigned number) {
    Bytes pixels;
    pixels.reserve(k_bytes);
    for (unsigned y = 0; y < k_side; ++y)
        for (unsigned x = 0; x < k_side; ++x)
            for (const auto value : {x / 4 + number * 31, y / 4 + (x & y & 48), (x + y) / 8 + number})
                pixels.push_back(static_cast<unsigned char>(value));
    return pixels;
}

class Program {
public:
    Program() {
        CHECKED(cudaSetDevice(0));
        CHECKED(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CHECKED(nvjpegCreateSimple(&library_));
        CHECKED(nvjpegJpegStateCreate(library_, &decoder_));
        CHECKED(nvjpegDecodeBatchedInitialize(library_, decoder_, 1, 1, NVJPEG_OUTPUT_RGBI));
        CHECKED(cudaMalloc(&image_.channel[0], k_bytes));
        image_.pitch[0] = std::size_t{3} * k_side;
        for (unsigned i = 0; i < files_.size(); ++i) files_[i] = encode(draw(i));
    }

    void step(int number) {
        const auto& file = files_[static_cast<std::size_t>(number) % files_.size()];
        CHECKED(
            nvjpegDecode(library_, decoder_, file.data(), file.size(), NVJPEG_OUTPUT_RGBI, &image_, stream_));
        CHECKED(cudaStreamSynchronize(stream_));
        Bytes pixels(k_bytes);
        CHECKED(cudaMemcpy(pixels.data(), image_.channel[0], k_bytes, cudaMemcpyDeviceToHost));
        digest_.add(pixels.data(), k_bytes);
    }

    [[nodiscard]] std::string digest() const { return digest_.finish(); }

private:
    Bytes encode(const Bytes& pixels) {
        nvjpegEncoderState_t encoder = nullptr;
        nvjpegEncoderParams_t parameters = nullptr;
        CHECKED(nvjpegEncoderStateCreate(library_, &encoder, stream_));
        CHECKED(nvjpegEncoderParamsCreate(library_, &parameters, stream_));
        CHECKED(nvjpegEncoderParamsSetQuality(parameters, 90, stream_));
        CHECKED(nvjpegEncoderParamsSetSamplingFactors(parameters, NVJPEG_CSS_420, stream_));
        CHECKED(cudaMemcpyAsync(image_.channel[0], pixels.data(), k_bytes, cudaMemcpyDefault, stream_));
        CHECKED(nvjpegEncodeImage(library_, encoder, parameters, &image_, NVJPEG_INPUT_RGBI, k_side, k_side,
                                  stream_));
        std::size_t size = 0;
        CHECKED(nvjpegEncodeRetrieveBitstream(library_, encoder, nullptr, &size, stream_));
        CHECKED(cudaStreamSynchronize(stream_));
        Bytes file(size);
        CHECKED(nvjpegEncodeRetrieveBitstream(library_, encoder, file.data(), &size, stream_));
        CHECKED(cudaStreamSynchronize(stream_));
        CHECKED(nvjpegEncoderParamsDestroy(parameters));
        CHECKED(nvjpegEncoderStateDestroy(encoder));
        return file;
    }

    cudaStream_t stream_ = nullptr;
    nvjpegHandle_t library_ = nullptr;
    nvjpegJpegState_t decoder_ = nullptr;
    nvjpegImage_t image_{};
    std::array<Bytes, 4> files_;
    Digest digest_;
};

} // namespace

int main(int count, char** words) {
    Program program;
    return run({count, words}, program);
}
