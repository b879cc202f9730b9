// AVX-512 with VNNI; AVX-512 BF16 in table_avx512_bf16.cpp.
#include "kernel_table.h"

#if defined(__AVX512VNNI__)

#    include "attention_kernel.h"
#    include "plain_kernel.h"
#    include "quant_kernel.h"
#    include "vec_avx512.h"

namespace dspark::kernels {

const kernel_table * table_avx512() {
    static const kernel_table table = [] {
        kernel_table t{"avx512", avx512::lanes, avx512::q8_bias, attention_of<avx512>(), {}};
        fill_all_quant<avx512>(t);
        fill_all_plain<avx512>(t);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_avx512() { return nullptr; }

#endif
