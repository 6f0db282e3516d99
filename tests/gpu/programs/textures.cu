// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program whose kernels read by textures and write by surfaces: over arrays and a mipmapped
// array, which the driver keeps to itself, and over linear and pitched memory. The objects are made once.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>

namespace {

using Word = unsigned;
constexpr unsigned k_side = 1024;
constexpr unsigned k_layers = 8;
constexpr unsigned k_levels = 5;

/// What the kernels read; passed by value.
struct Textures {
    cudaTextureObject_t array = 0;
    cudaTextureObject_t layered = 0;
    cudaTextureObject_t mipmapped = 0;
    cudaTextureObject_t linear = 0;
    cudaTextureObject_t pitched = 0;
};

__device__ Word mixed(Word value, Word salt) {
    return value * 1664525U + 1013904223U + (salt ^ value >> 13);
}

/// words[i] from all the textures.
__global__ void gather(Word* words, std::size_t count, Textures textures, Word salt) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const auto x = static_cast<unsigned>(i % k_side);
        const auto y = static_cast<unsigned>(i / k_side % k_side);
        const auto level = static_cast<unsigned>(i % k_levels);
        const auto middle = [](unsigned place) { return static_cast<float>(place) + 0.5F; };
        Word sum = tex2D<Word>(textures.array, middle(x), middle(y));
        sum = mixed(sum ^ tex2DLayered<Word>(textures.layered, middle(x), middle(y),
                                             static_cast<int>(i / 7 % k_layers)),
                    salt);
        sum = mixed(sum ^ tex2DLod<Word>(textures.mipmapped, middle(x) / k_side, middle(y) / k_side,
                                         static_cast<float>(level)),
                    salt);
        sum = mixed(sum ^ tex1Dfetch<Word>(textures.linear, static_cast<int>(i)), salt);
        sum = mixed(sum ^ tex2D<Word>(textures.pitched, middle(x), middle(y)), salt);
        words[i] = words[i] * 69069U + sum;
    }
}

/// Writes a square of `side` words into a surface, by what is at the end of `words`.
__global__ void scatter(cudaSurfaceObject_t surface, const Word* words, std::size_t count, unsigned side,
                        Word salt) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < side * side; i += gridDim.x * blockDim.x)
        surf2Dwrite<Word>(mixed(words[count - 1 - i], salt), surface,
                          static_cast<int>(i % side * sizeof(Word)), static_cast<int>(i / side));
}

__global__ void scatter_layer(cudaSurfaceObject_t surface, const Word* words, int layer, Word salt) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < k_side * k_side; i += gridDim.x * blockDim.x)
        surf2DLayeredwrite<Word>(mixed(words[i], salt), surface, static_cast<int>(i % k_side * sizeof(Word)),
                                 static_cast<int>(i / k_side), layer);
}

/// Writes rows of `width` words by their addresses, which the textures over them read later.
__global__ void spread(Word* to, std::size_t pitch_words, std::size_t width, std::size_t height,
                       const Word* words, Word salt) {
    const auto count = width * height;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        to[i / width * pitch_words + i % width] = mixed(words[i], salt);
}

cudaTextureObject_t make_texture(const cudaResourceDesc& resource, bool is_normalized = false) {
    cudaTextureDesc description{};
    for (auto& mode : description.addressMode) mode = cudaAddressModeClamp;
    description.filterMode = cudaFilterModePoint;
    description.mipmapFilterMode = cudaFilterModePoint;
    description.readMode = cudaReadModeElementType;
    description.normalizedCoords = is_normalized ? 1 : 0;
    description.maxMipmapLevelClamp = is_normalized ? k_levels - 1 : 0;
    cudaTextureObject_t made = 0;
    CHECKED(cudaCreateTextureObject(&made, &resource, &description, nullptr));
    return made;
}

cudaResourceDesc resource_of(cudaArray_t array) {
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

cudaSurfaceObject_t make_surface(cudaArray_t array) {
    const auto resource = resource_of(array);
    cudaSurfaceObject_t made = 0;
    CHECKED(cudaCreateSurfaceObject(&made, &resource));
    return made;
}

class Program {
public:
    explicit Program(double scale) : count_((static_cast<std::size_t>(16 * scale) + 1) << 20) {
        CHECKED(cudaSetDevice(0));
        CHECKED(cudaStreamCreate(&stream_));
        make_arrays();
        make_memory();
        for (unsigned i = 0; i < k_levels; ++i) write(level_surfaces_[i], k_side >> i, 1 + i);
        write(surface_, k_side, 17);
        for (unsigned i = 0; i < k_layers; ++i) write_layer(static_cast<int>(i), 31 + i);
        CHECKED(cudaStreamSynchronize(stream_));
    }

    void step(int number) {
        const auto salt = static_cast<Word>(number) * 2654435761U;
        const auto part = static_cast<unsigned>(number);
        gather<<<256, 256, 0, stream_>>>(words_, count_, textures_, salt);
        CHECKED(cudaGetLastError());
        write(level_surfaces_[part % k_levels], k_side >> part % k_levels, salt + 1);
        if (part % 3 == 0) write(surface_, k_side, salt + 2);
        write_layer(static_cast<int>(part % k_layers), salt + 3);
        spread<<<256, 256, 0, stream_>>>(pitched_, pitch_ / sizeof(Word), k_side, k_side, words_, salt);
        spread<<<256, 256, 0, stream_>>>(linear_, count_, count_, 1, words_, salt + 4);
        CHECKED(cudaGetLastError());
        if (part % 4 == 0) copy_rows(part);
        if (part % 2 == 0) CHECKED(cudaStreamSynchronize(stream_));
    }

    std::string digest() {
        Digest digest;
        CHECKED(cudaStreamSynchronize(stream_));
        std::vector<Word> host(count_);
        CHECKED(cudaMemcpy(host.data(), words_, count_ * sizeof(Word), cudaMemcpyDefault));
        digest.add(host.data(), count_ * sizeof(Word));
        add(digest, array_, k_side);
        for (unsigned i = 0; i < k_levels; ++i) add(digest, levels_[i], k_side >> i);
        return digest.finish();
    }

private:
    static constexpr std::size_t k_row_bytes = k_side * sizeof(Word);

    void make_arrays() {
        const auto channel = cudaCreateChannelDesc<Word>();
        CHECKED(cudaMallocArray(&array_, &channel, k_side, k_side, cudaArraySurfaceLoadStore));
        CHECKED(cudaMalloc3DArray(&layered_, &channel, make_cudaExtent(k_side, k_side, k_layers),
                                  cudaArrayLayered | cudaArraySurfaceLoadStore));
        CHECKED(cudaMallocMipmappedArray(&mipmapped_, &channel, make_cudaExtent(k_side, k_side, 0), k_levels,
                                         cudaArraySurfaceLoadStore));
        surface_ = make_surface(array_);
        layered_surface_ = make_surface(layered_);
        for (unsigned i = 0; i < k_levels; ++i) {
            CHECKED(cudaGetMipmappedArrayLevel(&levels_[i], mipmapped_, i));
            level_surfaces_[i] = make_surface(levels_[i]);
        }
        textures_.array = make_texture(resource_of(array_));
        textures_.layered = make_texture(resource_of(layered_));
        cudaResourceDesc resource{};
        resource.resType = cudaResourceTypeMipmappedArray;
        resource.res.mipmap.mipmap = mipmapped_;
        textures_.mipmapped = make_texture(resource, true);
    }

    void make_memory() {
        const auto channel = cudaCreateChannelDesc<Word>();
        CHECKED(cudaMalloc(&words_, count_ * sizeof(Word)));
        CHECKED(cudaMalloc(&linear_, count_ * sizeof(Word)));
        CHECKED(cudaMallocPitch(&pitched_, &pitch_, k_row_bytes, k_side));
        CHECKED(cudaMemset(words_, 0x35, count_ * sizeof(Word)));
        CHECKED(cudaMemset(linear_, 0x53, count_ * sizeof(Word)));
        CHECKED(cudaMemset2D(pitched_, pitch_, 0x17, k_row_bytes, k_side));
        cudaResourceDesc resource{};
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear = {linear_, channel, count_ * sizeof(Word)};
        textures_.linear = make_texture(resource);
        resource = {};
        resource.resType = cudaResourceTypePitch2D;
        resource.res.pitch2D = {pitched_, channel, k_side, k_side, pitch_};
        textures_.pitched = make_texture(resource);
    }

    void write(cudaSurfaceObject_t surface, unsigned side, Word salt) {
        scatter<<<64, 256, 0, stream_>>>(surface, words_, count_, side, salt);
        CHECKED(cudaGetLastError());
    }
    void write_layer(int layer, Word salt) {
        scatter_layer<<<64, 256, 0, stream_>>>(layered_surface_, words_, layer, salt);
        CHECKED(cudaGetLastError());
    }
    /// Between memory that sleeps and an array that does not, both ways.
    void copy_rows(unsigned part) {
        const auto rows = std::size_t{k_side} / 4;
        CHECKED(cudaMemcpy2DToArrayAsync(array_, 0, part % 3 * rows, pitched_, pitch_, k_row_bytes, rows,
                                         cudaMemcpyDeviceToDevice, stream_));
        CHECKED(cudaMemcpy2DFromArrayAsync(words_, k_row_bytes, levels_[0], 0, part % 2 * rows, k_row_bytes,
                                           rows, cudaMemcpyDeviceToDevice, stream_));
    }

    static void add(Digest& digest, cudaArray_t array, std::size_t side) {
        std::vector<Word> host(side * side);
        const auto row_bytes = side * sizeof(Word);
        CHECKED(cudaMemcpy2DFromArray(host.data(), row_bytes, array, 0, 0, row_bytes, side,
                                      cudaMemcpyDeviceToHost));
        digest.add(host.data(), row_bytes * side);
    }

    std::size_t count_; ///< of words_ and linear_
    cudaStream_t stream_ = nullptr;
    Word* words_ = nullptr;
    Word* linear_ = nullptr;
    Word* pitched_ = nullptr;
    std::size_t pitch_ = 0;
    cudaArray_t array_ = nullptr;
    cudaArray_t layered_ = nullptr;
    cudaMipmappedArray_t mipmapped_ = nullptr;
    std::array<cudaArray_t, k_levels> levels_{};
    cudaSurfaceObject_t surface_ = 0;
    cudaSurfaceObject_t layered_surface_ = 0;
    std::array<cudaSurfaceObject_t, k_levels> level_surfaces_{};
    Textures textures_;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    return run(options, Program(options.scale));
}
