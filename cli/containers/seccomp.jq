# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
# Makes a seccomp profile of a container engine say that it lets the agent's calls pass, or fails them with an error: without
# that, the agent avoids calls for which a filter might end the program. The agent asks by close(0x67707573), a descriptor that
# no program has. Everything else stays as the engine's profile has it.
def question: {index: 0, value: 1735423347, valueTwo: 0};

.syscalls = [.syscalls[]? | (select(.names).names) -= ["close"] | select(.names != [])] + [
    # What the profile lets pass anyway may have no rule that says so.
    (select(.defaultAction != "SCMP_ACT_ALLOW") | {names: ["close"], action: "SCMP_ACT_ALLOW", args: [question + {op: "SCMP_CMP_NE"}]}),
    {names: ["close"], action: "SCMP_ACT_ERRNO", errnoRet: 76, args: [question + {op: "SCMP_CMP_EQ"}]}
  ]
