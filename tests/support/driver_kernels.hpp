// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernels of the simulated driver (simulated_driver/control.h) for real GPUs, as text that the driver
// compiles. The simulated driver reads no image and runs its own of the same names. Each thread takes its
// share of the words, so that any number of threads does the same. A kernel that waits gives up in the end:
// no device hangs.

#pragma once

namespace gpu_sleep::driver_testing {

/// A loop of a kernel over its words: what stands before its body, and behind it.
#define GPU_SLEEP_TEST_FOR_EACH_WORD                                                                         \
    "    mov.u32 %block, %ctaid.x;\n"                                                                        \
    "    mov.u32 %threads, %ntid.x;\n"                                                                       \
    "    mov.u32 %thread, %tid.x;\n"                                                                         \
    "    mov.u32 %blocks, %nctaid.x;\n"                                                                      \
    "    cvt.u64.u32 %at, %thread;\n"                                                                        \
    "    mad.wide.u32 %index, %block, %threads, %at;\n"                                                      \
    "    mul.wide.u32 %step, %blocks, %threads;\n"                                                           \
    "next:\n"                                                                                                \
    "    setp.ge.u64 %end, %index, %count;\n"                                                                \
    "    @%end bra done;\n"
#define GPU_SLEEP_TEST_NEXT_WORD                                                                             \
    "    add.u64 %index, %index, %step;\n"                                                                   \
    "    bra next;\n"                                                                                        \
    "done:\n"                                                                                                \
    "    ret;\n"                                                                                             \
    "}\n"

inline constexpr const char* k_kernels_ptx = R"(
.version 7.0
.target sm_70
.address_size 64

// sim_fill(uint32_t* to, uint64_t count, uint32_t value)
.visible .entry sim_fill(.param .u64 to, .param .u64 count, .param .u32 value)
{
    .reg .pred %end;
    .reg .b32 %block, %threads, %thread, %blocks, %value;
    .reg .b64 %to, %count, %index, %step, %at;
    ld.param.u64 %to, [to];
    ld.param.u64 %count, [count];
    ld.param.u32 %value, [value];
)" GPU_SLEEP_TEST_FOR_EACH_WORD R"(    shl.b64 %at, %index, 2;
    add.u64 %at, %at, %to;
    st.volatile.global.u32 [%at], %value;
)" GPU_SLEEP_TEST_NEXT_WORD R"(
// sim_add(uint32_t* to, uint64_t count, uint32_t increment)
.visible .entry sim_add(.param .u64 to, .param .u64 count, .param .u32 increment)
{
    .reg .pred %end;
    .reg .b32 %block, %threads, %thread, %blocks, %increment, %word;
    .reg .b64 %to, %count, %index, %step, %at;
    ld.param.u64 %to, [to];
    ld.param.u64 %count, [count];
    ld.param.u32 %increment, [increment];
)" GPU_SLEEP_TEST_FOR_EACH_WORD R"(    shl.b64 %at, %index, 2;
    add.u64 %at, %at, %to;
    ld.global.u32 %word, [%at];
    add.u32 %word, %word, %increment;
    st.global.u32 [%at], %word;
)" GPU_SLEEP_TEST_NEXT_WORD R"(
// sim_copy(uint32_t* to, const uint32_t* from, uint64_t count)
.visible .entry sim_copy(.param .u64 to, .param .u64 from, .param .u64 count)
{
    .reg .pred %end;
    .reg .b32 %block, %threads, %thread, %blocks, %word;
    .reg .b64 %to, %from, %count, %index, %step, %offset, %at;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u64 %count, [count];
)" GPU_SLEEP_TEST_FOR_EACH_WORD R"(    shl.b64 %offset, %index, 2;
    add.u64 %at, %from, %offset;
    ld.global.u32 %word, [%at];
    add.u64 %at, %to, %offset;
    st.global.u32 [%at], %word;
)" GPU_SLEEP_TEST_NEXT_WORD R"(
// sim_spin(uint64_t milliseconds), at most 30 seconds
.visible .entry sim_spin(.param .u64 milliseconds)
{
    .reg .pred %going;
    .reg .b64 %now, %end;
    ld.param.u64 %end, [milliseconds];
    min.u64 %end, %end, 30000;
    mul.lo.u64 %end, %end, 1000000;
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
next:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %going, %now, %end;
    @%going bra next;
    ret;
}

// sim_spin_until(const uint32_t* flag), at most 10 seconds
.visible .entry sim_spin_until(.param .u64 flag)
{
    .reg .pred %going;
    .reg .b32 %word;
    .reg .b64 %flag, %now, %end;
    ld.param.u64 %flag, [flag];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, 10000000000;
next:
    ld.volatile.global.u32 %word, [%flag];
    setp.ne.u32 %going, %word, 0;
    @%going bra done;
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %going, %now, %end;
    @%going bra next;
done:
    ret;
}
)";

/// A kernel whose assertion fails, for real GPUs alone. A module of its own: the driver adds the function
/// that it calls.
inline constexpr const char* k_failing_ptx = R"(
.version 7.0
.target sm_70
.address_size 64

.extern .func __assertfail
(
    .param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 char_bytes
);
.global .align 1 .b8 text[6] = {102, 97, 105, 108, 115, 0};

.visible .entry fail_assertion()
{
    .reg .b64 %text;
    mov.u64 %text, text;
    cvta.global.u64 %text, %text;
    {
    .param .b64 message;
    st.param.b64 [message], %text;
    .param .b64 file;
    st.param.b64 [file], %text;
    .param .b32 line;
    st.param.b32 [line], 1;
    .param .b64 function;
    st.param.b64 [function], %text;
    .param .b64 char_bytes;
    st.param.b64 [char_bytes], 1;
    call.uni __assertfail, (message, file, line, function, char_bytes);
    }
    ret;
}
)";

} // namespace gpu_sleep::driver_testing
