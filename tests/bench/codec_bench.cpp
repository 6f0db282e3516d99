// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What making contents smaller costs a core, by kind of weight: our chunks, and the contents themselves by
// libzstd at level 1, and at the fastest level with Huffman codes; and what decoding blocks costs that a GPU
// has encoded. "size" is the part of the contents that is stored.

#define ZSTD_STATIC_LINKING_ONLY // Huffman codes at the fastest level
#include "codec/block_code.hpp"
#include "codec/chunk.hpp"
#include "support/block_encoder.hpp"
#include "support/weights.hpp"

#include <benchmark/benchmark.h>
#include <zstd.h>

namespace {

using namespace gpu_sleep;
using test::ByteVector;

constexpr auto k_bytes = static_cast<std::size_t>(codec::k_chunk_bytes);

enum class Kind : std::uint8_t { bf16, e4m3, fp32, random };

const ByteVector& contents(Kind kind) {
    static const ByteVector all[] = {test::normal_bf16(k_bytes / 2), test::normal_e4m3(k_bytes),
                                     test::normal_fp32(k_bytes / 4), test::random_bytes(k_bytes)};
    return all[static_cast<std::size_t>(kind)];
}

void finish(benchmark::State& state, std::size_t stored) {
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(k_bytes));
    state.counters["size"] = static_cast<double>(stored) / static_cast<double>(k_bytes);
}

void encode(benchmark::State& state, Kind kind) {
    const auto& content = contents(kind);
    codec::ChunkEncoder encoder;
    ByteVector out(codec::ChunkEncoder::bound(k_bytes));
    codec::ChunkEncoder::Encoded encoded;
    for (auto _ : state) encoded = *encoder.encode(content, out);
    finish(state, encoded.shape.width == 0 ? k_bytes : encoded.bytes);
}

void decode(benchmark::State& state, Kind kind) {
    codec::ChunkEncoder encoder;
    ByteVector stored(codec::ChunkEncoder::bound(k_bytes));
    const auto encoded = *encoder.encode(contents(kind), stored);
    if (encoded.shape.width == 0) return state.SkipWithError("stored as it is");
    codec::ChunkDecoder decoder;
    ByteVector content(k_bytes);
    for (auto _ : state)
        if (!decoder.decode(encoded.shape, std::span(stored).first(encoded.bytes), content))
            return state.SkipWithError("not decoded");
    finish(state, encoded.bytes);
}

void zstd_encode(benchmark::State& state, Kind kind, int level) {
    const auto& content = contents(kind);
    auto* const context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    if (level < 0) ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    ByteVector out(ZSTD_compressBound(k_bytes));
    std::size_t bytes = 0;
    for (auto _ : state) bytes = ZSTD_compress2(context, out.data(), out.size(), content.data(), k_bytes);
    ZSTD_freeCCtx(context);
    finish(state, bytes);
}

void zstd_decode(benchmark::State& state, Kind kind) {
    ByteVector stored(ZSTD_compressBound(k_bytes));
    const auto bytes = ZSTD_compress(stored.data(), stored.size(), contents(kind).data(), k_bytes, 1);
    auto* const context = ZSTD_createDCtx();
    ByteVector content(k_bytes);
    for (auto _ : state) ZSTD_decompressDCtx(context, content.data(), k_bytes, stored.data(), bytes);
    ZSTD_freeDCtx(context);
    finish(state, bytes);
}

void block_decode(benchmark::State& state, Kind kind) {
    const auto block = std::span(contents(kind)).first(codec::k_largest_block);
    const auto plan = test::measure_block(block);
    ByteVector stored(plan.coded_bytes);
    if (test::encode_block(plan, block, stored) == 0) return state.SkipWithError("stored as it is");
    ByteVector content(block.size());
    for (auto _ : state)
        if (!codec::decode_block(plan.block_class, stored, content))
            return state.SkipWithError("not decoded");
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block.size()));
    state.counters["size"] = static_cast<double>(plan.coded_bytes) / static_cast<double>(block.size());
}

#define GPU_SLEEP_BENCHMARKS(kind)                                                                           \
    BENCHMARK_CAPTURE(encode, kind, Kind::kind);                                                             \
    BENCHMARK_CAPTURE(decode, kind, Kind::kind);                                                             \
    BENCHMARK_CAPTURE(zstd_encode, kind##_level_1, Kind::kind, 1);                                           \
    BENCHMARK_CAPTURE(zstd_encode, kind##_fastest, Kind::kind, ZSTD_minCLevel());                            \
    BENCHMARK_CAPTURE(zstd_decode, kind, Kind::kind)

BENCHMARK_CAPTURE(block_decode, bf16, Kind::bf16);
BENCHMARK_CAPTURE(block_decode, fp32, Kind::fp32);
GPU_SLEEP_BENCHMARKS(bf16);
GPU_SLEEP_BENCHMARKS(e4m3);
GPU_SLEEP_BENCHMARKS(fp32);
GPU_SLEEP_BENCHMARKS(random);

} // namespace

BENCHMARK_MAIN();
