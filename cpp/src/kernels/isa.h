// Which instruction set the kernels use on this processor.
#pragma once

namespace dspark::kernels {

// Chooses the best set that both this build and this processor have, once; false if there is none.
bool select_isa();

// "avx512", "avx512_bf16", ..., or "" before select_isa().
const char * isa_name();

} // namespace dspark::kernels
