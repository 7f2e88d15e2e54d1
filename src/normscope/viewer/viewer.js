function mountNormscope(){}
