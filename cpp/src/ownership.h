// Who decodes in a context of llama.cpp: one session or reader at a time.
#pragma once

#include "llama_binding.h"

namespace dspark {

class ownership {
  public:
    // Throws DSPARK_ERROR_STATE if the context has an owner.
    explicit ownership(llama_context * ctx);
    ~ownership();

    ownership(const ownership &)             = delete;
    ownership & operator=(const ownership &) = delete;

  private:
    llama_context * ctx_;
};

} // namespace dspark
