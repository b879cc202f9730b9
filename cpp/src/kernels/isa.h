// Which instruction set the kernels use on this processor.
#pragma once

#include "kernel_table.h"

namespace dspark::kernels {

// The best table that both this build and this processor have, or null.  The environment variable DSPARK_KERNELS_ISA may
// name a lesser one ("avx2"), for tests.  Chosen once.
const kernel_table * kernels_of_this_machine();

} // namespace dspark::kernels
