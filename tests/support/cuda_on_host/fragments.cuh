// A warp's fragments on the host: every lane loads the whole.
template <typename F>
void load_fragment(F& fragment, const OPERAND* from, unsigned stride) {
    wmma::load_matrix_sync(fragment, from, stride);
}
