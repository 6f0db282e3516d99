// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// All that the commands, the protocol and the agent share as plain data: one include for both files of it.

#pragma once

#include "model/report.hpp"
#include "model/request.hpp"
