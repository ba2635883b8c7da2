"""Programs to compile: a GPT-2, a ResNet, an MLP, seven small functions, and the demonstration that
runs them."""
