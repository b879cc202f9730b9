// SIGINT and SIGTERM while a target computes: the batch in progress is given up, so that the host's own handling of the
// signal does not wait for its end.  See dspark.h.
#pragma once

namespace dspark::interrupts {

// Notes the signals that the host handles, besides handing them on, for what this thread decodes until end().
void begin();

// True if a batch was given up.
bool end();

// Asked by ggml after every node of a graph: is this batch to be given up?
bool asked();

} // namespace dspark::interrupts
